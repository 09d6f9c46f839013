package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
)

// redisOptions say where the policy table is, for commands that can look into it.
type redisOptions struct {
	addresses    []string
	username     string
	passwordFile string
	sentinel     string
	tls          bool
	caFile       string
	table        string
}

func (o *redisOptions) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&o.addresses, "redis", nil, "host:port of the Redis with the policy table; several are the seeds of a Redis Cluster or the Sentinels")
	flags.StringVar(&o.username, "redis-username", "", "user of Redis")
	flags.StringVar(&o.passwordFile, "redis-password-file", "", "file with the password for Redis")
	flags.StringVar(&o.sentinel, "redis-sentinel-master", "", "name of the master that the Sentinels at --redis watch")
	flags.BoolVar(&o.tls, "redis-tls", false, "connect to Redis with TLS")
	flags.StringVar(&o.caFile, "redis-tls-ca-file", "", "file with the certificates of the authorities to trust; the system's when absent")
	flags.StringVar(&o.table, "table", redisstore.DefaultTable, "name of the policy table")
}

func (o *redisOptions) given() bool { return len(o.addresses) > 0 }

func (o *redisOptions) validate() error {
	if err := redisstore.ValidateTable(o.table); err != nil {
		return usageError{fmt.Errorf("--table: %w", err)}
	}
	for _, address := range o.addresses {
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			return usageError{fmt.Errorf("--redis: want host:port, got %q", address)}
		}
	}
	switch others := o.username + o.passwordFile + o.sentinel + o.caFile; {
	case !o.given() && (others != "" || o.tls):
		return usageError{errors.New("--redis-… need --redis with the address")}
	case !o.given() && o.table != redisstore.DefaultTable:
		return usageError{errors.New("--table is one in Redis: give the address with --redis")}
	case o.caFile != "" && !o.tls:
		return usageError{errors.New("--redis-tls-ca-file needs --redis-tls")}
	}
	return nil
}

// redisTimeout bounds what a command waits for Redis.
const redisTimeout = 5 * time.Second

func (o *redisOptions) client() (redis.UniversalClient, error) {
	redis.SetLogger(silent{}) // what there is to say is in the errors
	options := &redis.UniversalOptions{
		Addrs: o.addresses, MasterName: o.sentinel, Username: o.username,
		DialTimeout: redisTimeout, ReadTimeout: redisTimeout,
	}
	if o.passwordFile != "" {
		password, err := os.ReadFile(o.passwordFile)
		if err != nil {
			return nil, usageError{fmt.Errorf("--redis-password-file: %w: name the file that holds the password alone", err)}
		}
		options.Password = strings.TrimRight(string(password), "\r\n")
	}
	if o.tls {
		options.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		if o.caFile != "" {
			pem, err := os.ReadFile(o.caFile)
			if err != nil {
				return nil, usageError{fmt.Errorf("--redis-tls-ca-file: %w: name a file of certificates in PEM form", err)}
			}
			options.TLSConfig.RootCAs = x509.NewCertPool()
			if !options.TLSConfig.RootCAs.AppendCertsFromPEM(pem) {
				return nil, usageError{fmt.Errorf("--redis-tls-ca-file: there is no certificate in %s: name a file of certificates in PEM form", o.caFile)}
			}
		}
	}
	return redisstore.NewClient(options), nil
}

// inspect reads what the table holds of a workload; nil without --redis.
func (o *redisOptions) inspect(ctx context.Context, w policy.Workload) (*redisstore.Inspection, error) {
	if !o.given() {
		return nil, nil
	}
	client, err := o.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	in, err := redisstore.Inspect(ctx, client, o.table, w)
	if err != nil {
		return nil, o.advise(err)
	}
	return &in, nil
}

func (o *redisOptions) advise(err error) error {
	return fmt.Errorf("asking Redis at %s: %w: check --redis, and the port-forward if there is one", strings.Join(o.addresses, ","), err)
}

// noRow says that the table has nothing about a workload.
func (o *redisOptions) noRow(w policy.Workload) string {
	return fmt.Sprintf("the table %s in Redis holds no row for %s/%s", o.table, w.Namespace, w.Name)
}

// needed is the error of commands that have nothing to tell without Redis.
func (o *redisOptions) needed() error {
	if o.given() {
		return nil
	}
	return usageError{errors.New("counters are in Redis: give its address with --redis, for example after kubectl port-forward -n weir-system svc/redis 6379")}
}
