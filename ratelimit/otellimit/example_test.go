package otellimit_test

import (
	"context"
	"log"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/otellimit"
)

// The provider is the global one, which main has set up with its exporter. Around the middleware of the limiter stands
// what makes a span of each request: otelhttp.NewHandler(limiter.Middleware(mux), "server").
func Example() {
	options, err := ratelimit.OptionsFromEnv()
	if err != nil {
		log.Fatal(err)
	}
	options.Counters = ratelimit.Memory()
	options.Tracer = otellimit.NewTracer()
	limiter, err := ratelimit.New(options)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(limiter.Run(context.Background()))
}
