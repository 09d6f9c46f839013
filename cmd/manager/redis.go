package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

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

// client builds the client without connecting: the process starts and stays up while Redis is away. Files are read here
// once, so that a wrong name ends the start, and then anew for each connection.
func (r *redisOptions) client() (redis.UniversalClient, error) {
	options := &redis.UniversalOptions{
		Addrs:            r.addresses,
		MasterName:       r.sentinelMaster,
		DB:               r.db,
		Username:         r.username,
		SentinelUsername: r.sentinelUsername,
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
	if r.sentinelPasswordFile != "" {
		password, err := r.sentinelPassword()
		if err != nil {
			return nil, err
		}
		options.SentinelPassword = password
	}
	if r.tls {
		if _, err := r.tlsConfig(); err != nil {
			return nil, err
		}
		options.Dialer = r.dialTLS
	}
	return redisstore.NewClient(options), nil
}

func (r *redisOptions) password() (string, error) {
	password, err := readSecret(r.passwordFile)
	if err != nil {
		return "", fmt.Errorf("--redis-password-file: %w", err)
	}
	return password, nil
}

func (r *redisOptions) sentinelPassword() (string, error) {
	password, err := readSecret(r.sentinelPasswordFile)
	if err != nil {
		return "", fmt.Errorf("--redis-sentinel-password-file: %w", err)
	}
	return password, nil
}

func readSecret(file string) (string, error) {
	secret, err := os.ReadFile(file)
	return strings.TrimRight(string(secret), "\r\n"), err
}

// dialTimeout bounds one attempt to connect, handshake included.
const dialTimeout = 5 * time.Second

// dialTLS connects with the certificates that the files hold now.
func (r *redisOptions) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	config, err := r.tlsConfig()
	if err != nil {
		return nil, err
	}
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: config}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return dialer.DialContext(ctx, network, address)
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
		certificate, err := tls.LoadX509KeyPair(r.tlsCertFile, r.tlsKeyFile)
		if err != nil {
			return nil, fmt.Errorf("--redis-tls-cert-file: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}
