package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/RussellLuo/slidingwindow"
	"github.com/sethvargo/go-limiter/memorystore"
	throttledmemory "github.com/throttled/throttled/v2/store/memstore"
	"github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"
)

// memoryPeers are called as bare as they can be: by a key that is ready, without matching and without an identity.
func memoryPeers(k keys) ([]*subject, error) {
	var all []*subject
	for _, open := range []func(keys) (*subject, error){sethvargo, mapOfBuckets, mapOfWindows, ululeMemory, throttledMemory} {
		made, err := open(k)
		if err != nil {
			return all, err
		}
		made.role = peer
		all = append(all, made)
	}
	return all, nil
}

func sethvargo(k keys) (*subject, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: perHour, Interval: hour})
	if err != nil {
		return nil, fmt.Errorf("opening sethvargo's store: %w", err)
	}
	return &subject{
		name:    "sethvargo",
		release: func() { _ = store.Close(context.Background()) },
		take: one(func(ctx context.Context, key int) error {
			_, _, _, ok, err := store.Take(ctx, k.names[key])
			if err != nil {
				return err
			}
			return want(ok, false)
		}),
	}, nil
}

func mapOfBuckets(k keys) (*subject, error) {
	var buckets sync.Map
	every := rate.Limit(perHour / hour.Seconds())
	return &subject{name: "x-time-rate", take: one(func(_ context.Context, key int) error {
		bucket, ok := buckets.Load(k.names[key])
		if !ok {
			bucket, _ = buckets.LoadOrStore(k.names[key], rate.NewLimiter(every, perHour))
		}
		return want(bucket.(*rate.Limiter).Allow(), false)
	})}, nil
}

func mapOfWindows(k keys) (*subject, error) {
	var windows sync.Map
	open := func() *slidingwindow.Limiter {
		l, _ := slidingwindow.NewLimiter(hour, perHour, func() (slidingwindow.Window, slidingwindow.StopFunc) {
			return slidingwindow.NewLocalWindow()
		})
		return l
	}
	return &subject{name: "slidingwindow", take: one(func(_ context.Context, key int) error {
		window, ok := windows.Load(k.names[key])
		if !ok {
			window, _ = windows.LoadOrStore(k.names[key], open())
		}
		return want(window.(*slidingwindow.Limiter).Allow(), false)
	})}, nil
}

func ululeMemory(k keys) (*subject, error) {
	store := ululememory.NewStoreWithOptions(limiter.StoreOptions{Prefix: "bench", CleanUpInterval: time.Minute})
	l := limiter.New(store, limiter.Rate{Period: hour, Limit: perHour})
	return &subject{name: "ulule", take: one(func(ctx context.Context, key int) error {
		result, err := l.Get(ctx, k.names[key])
		if err != nil {
			return err
		}
		return want(!result.Reached, false)
	})}, nil
}

func throttledMemory(k keys) (*subject, error) {
	store, err := throttledmemory.NewCtx(0)
	if err != nil {
		return nil, fmt.Errorf("opening throttled's store: %w", err)
	}
	l, err := throttledLimiter(store, false)
	if err != nil {
		return nil, err
	}
	return &subject{name: "throttled", take: one(func(ctx context.Context, key int) error {
		limited, _, err := l.RateLimitCtx(ctx, k.names[key], 1)
		if err != nil {
			return err
		}
		return want(!limited, false)
	})}, nil
}
