package main

import (
	"crypto/tls"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// server says how metrics are served: by default with TLS, to clients whose token the API server knows and allows to get
// the URL /metrics. The watcher is nil unless the certificate comes from files; it must run.
func (m *metricsOptions) server() (metricsserver.Options, *certwatcher.CertWatcher, error) {
	options := metricsserver.Options{BindAddress: m.address, SecureServing: m.secure}
	if m.auth {
		options.FilterProvider = filters.WithAuthenticationAndAuthorization
	}
	var watcher *certwatcher.CertWatcher
	if m.certFile != "" {
		var err error
		if watcher, err = certwatcher.New(m.certFile, m.keyFile); err != nil {
			return options, nil, fmt.Errorf("--metrics-tls-cert-file: %w", err)
		}
	}
	options.TLSOpts = append(options.TLSOpts, func(config *tls.Config) {
		config.MinVersion = tls.VersionTLS12
		config.NextProtos = []string{"http/1.1"} // a scrape is one request; HTTP/2 has had floods of resets
		if watcher != nil {
			config.GetCertificate = watcher.GetCertificate
		}
	})
	return options, watcher, nil
}
