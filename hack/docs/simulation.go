package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/weir-dev/weir/internal/manifest"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/simulate"
)

const simulated = `
apiVersion: ratelimit.weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  targetRef: {group: apps, kind: Deployment, name: checkout}
  rules:
    - name: default
      key: [{clientIP: {}}]
      limits: [{requests: 300, window: 1m}]
`

// simulation is the chart of `kubectl weir simulate --chart` for an hour in which 40 clients do as always, and one of them
// sends thirty times as much from 08:20 to 08:40.
func simulation() (string, error) {
	parsed := manifest.Parse("simulated", []byte(simulated))
	var policies []policy.Policy
	for _, p := range parsed.Policies("shop") {
		policies = append(policies, p.Policy)
	}
	if err := parsed.Faults().Err(); err != nil {
		return "", err
	}
	r, err := simulate.New(simulate.Options{
		Workload: policies[0].Workload(), Policies: policies, Factors: []float64{0.5, 2},
	})
	if err != nil {
		return "", err
	}
	if err := r.Read(context.Background(), bytes.NewReader(simulatedLog())); err != nil {
		return "", fmt.Errorf("replaying: %w", err)
	}
	return r.Result().Chart(), nil
}

func simulatedLog() []byte {
	var log bytes.Buffer
	start := time.Date(2026, 10, 5, 8, 0, 0, 0, time.UTC)
	owed := make([]float64, 40) // requests that each client still has to send
	for second := range 3600 {
		for client := range owed {
			rate := 0.5 + float64(0.2*math.Sin(float64(second)/600+float64(client))) // not one step on some processors and two on others
			if client == 7 && 1200 <= second && second < 2400 {
				rate = 15
			}
			for owed[client] += rate; owed[client] >= 1; owed[client]-- {
				fmt.Fprintf(&log, "203.0.113.%d - - [%s] \"GET /items HTTP/1.1\" 200 512\n",
					client, start.Add(time.Duration(second)*time.Second).Format("02/Jan/2006:15:04:05 -0700"))
			}
		}
	}
	return log.Bytes()
}
