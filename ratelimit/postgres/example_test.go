package postgres_test

import (
	"context"
	"log"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
	"github.com/weir-dev/weir/ratelimit/postgres"
)

// An application without Kubernetes and without Redis: policies from a file, counters in the database it has anyway.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://checkout@db.example.com/checkout")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	policies, err := file.Files("policies.yaml")
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Options{
		Namespace: "shop",
		Workload:  "checkout",
		Policies:  policies,
		Counters:  postgres.New(pool, postgres.Options{}),
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Println(limiter.Run(ctx)) }()

	mux := http.NewServeMux()
	mux.HandleFunc("POST /exports", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	log.Println(http.ListenAndServe(":8080", limiter.Middleware(mux)))
}
