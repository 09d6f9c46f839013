package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"

	"github.com/weir-dev/weir/internal/redisstore"
)

// quietRedis hears what the driver says of every vain dial, which the controller tells once.
type quietRedis struct {
	log logr.Logger
}

// Printf implements the driver's logger.
func (q quietRedis) Printf(_ context.Context, format string, values ...any) {
	q.log.V(1).Info("Redis driver", "message", fmt.Sprintf(format, values...))
}

// client builds the client without connecting: the process starts and stays up while Redis is away.
func (r *redisOptions) client() (redis.UniversalClient, error) {
	options := &redis.UniversalOptions{
		Addrs:      r.addresses,
		MasterName: r.sentinelMaster,
		DB:         r.db,
		Username:   r.username,
	}
	if r.passwordFile != "" {
		if _, err := r.password(); err != nil {
			return nil, err
		}
		options.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := r.password()
			return r.username, password, err
		}
	}
	if r.tls {
		config, err := r.tlsConfig()
		if err != nil {
			return nil, err
		}
		options.TLSConfig = config
	}
	return redisstore.NewClient(options), nil
}

func (r *redisOptions) password() (string, error) {
	password, err := os.ReadFile(r.passwordFile)
	if err != nil {
		return "", fmt.Errorf("--redis-password-file: %w", err)
	}
	return strings.TrimRight(string(password), "\r\n"), nil
}

func (r *redisOptions) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: r.tlsServerName}
	if r.tlsCAFile != "" {
		pem, err := os.ReadFile(r.tlsCAFile)
		if err != nil {
			return nil, fmt.Errorf("--redis-tls-ca-file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--redis-tls-ca-file: %s has no certificate", r.tlsCAFile)
		}
	}
	if r.tlsCertFile != "" {
		if _, err := tls.LoadX509KeyPair(r.tlsCertFile, r.tlsKeyFile); err != nil {
			return nil, fmt.Errorf("--redis-tls-cert-file: %w", err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			certificate, err := tls.LoadX509KeyPair(r.tlsCertFile, r.tlsKeyFile)
			return &certificate, err
		}
	}
	return config, nil
}
