// Package ratelimit limits the requests of an application by policies that are kept elsewhere: RateLimitPolicy objects
// in Kubernetes, which Weir's controller writes to a policy table in Redis, or files.
//
//	options, err := ratelimit.OptionsFromEnv()
//	options.Redis = &redis.UniversalOptions{Addrs: addrs}
//	limiter, err := ratelimit.New(options)
//	go limiter.Run(ctx)
//	http.ListenAndServe(":8080", limiter.Middleware(mux))
//
// A limit means the same number however many replicas run, because they count in one store. When the store is slow or
// down, a decision still comes within [Options].StoreTimeout, by what the policy says for that case: the replica's
// share of the limit (the default), admit, or deny.
//
// The package starts no goroutine before [Limiter.Run], except for requests to the store that decisions make; it
// registers no metrics and logs nothing unless it is told where.
package ratelimit
