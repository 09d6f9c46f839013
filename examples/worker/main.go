// Command worker sends orders to a partner and stays under the partner's quota, together with all other workers: its
// HTTP client waits where it would be over. It reads one order a line.
//
//	seq 100 | worker -partner http://127.0.0.1:9000 -policies examples/worker/policy.yaml
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/ratelimit"
	"github.com/weir-dev/weir/ratelimit/file"
)

// settings are the flags.
type settings struct {
	partner  string
	redis    string
	policies string
	senders  int
}

func main() {
	var s settings
	flag.StringVar(&s.partner, "partner", "http://127.0.0.1:9000", "URL of the partner")
	flag.StringVar(&s.redis, "redis", "127.0.0.1:6379", "address of Redis")
	flag.StringVar(&s.policies, "policies", "", "files with policies, for one worker without a cluster: then counts stay in memory")
	flag.IntVar(&s.senders, "senders", 4, "orders under way at once")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, s, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "worker: %v\n", err)
		os.Exit(1)
	}
}

// run sends each line of in, and returns when all are sent.
func run(ctx context.Context, s settings, in io.Reader, out io.Writer) error {
	limiter, err := newLimiter(s)
	if err != nil {
		return err
	}
	limiting, stop := context.WithCancel(context.WithoutCancel(ctx))
	limited := make(chan error, 1)
	go func() { limited <- limiter.Run(limiting) }()
	err = limiter.WaitReady(ctx) // before any order is sent without a limit
	if err == nil {
		err = send(ctx, limiter, s, in, out)
	}
	stop()
	return errors.Join(err, <-limited)
}

func newLimiter(s settings) (*ratelimit.Limiter, error) {
	options, err := ratelimit.OptionsFromEnv()
	if err != nil {
		return nil, err
	}
	options.WhenNoPolicy = ratelimit.Closed // better late than over the partner's quota
	if s.policies == "" {
		options.Redis = &redis.UniversalOptions{Addrs: []string{s.redis}}
		return ratelimit.New(options)
	}
	source, err := file.Files(s.policies)
	if err != nil {
		return nil, err
	}
	options.Namespace, options.Workload = "shop", "worker"
	options.Policies, options.Counters = source, ratelimit.Memory()
	return ratelimit.New(options)
}

func send(ctx context.Context, limiter *ratelimit.Limiter, s settings, in io.Reader, out io.Writer) error {
	client := &http.Client{Transport: limiter.RoundTripper(nil)}
	orders := make(chan string)
	var failed error
	var mu sync.Mutex // for out and failed
	var senders sync.WaitGroup
	for range s.senders {
		senders.Go(func() {
			for order := range orders {
				began := time.Now()
				err := post(ctx, client, s.partner+"/orders", order)
				mu.Lock()
				if failed = errors.Join(failed, err); err == nil {
					fmt.Fprintf(out, "%s sent, after %v\n", order, time.Since(began).Round(time.Millisecond))
				}
				mu.Unlock()
			}
		})
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		orders <- lines.Text()
	}
	close(orders)
	senders.Wait()
	return errors.Join(failed, lines.Err())
}

func post(ctx context.Context, client *http.Client, url, order string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(order))
	if err != nil {
		return err
	}
	response, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("order %s: %w", order, err)
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("order %s: the partner says %s", order, response.Status)
	}
	return nil
}
