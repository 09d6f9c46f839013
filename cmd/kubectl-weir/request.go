package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
)

// requestOptions describe a request, as the library sees it.
type requestOptions struct {
	method, route, path, host, remote string
	headers, attributes, proxies      []string
}

func (o *requestOptions) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.method, "method", http.MethodGet, "method of the request")
	flags.StringVar(&o.route, "route", "", "route template that the router matches, such as /users/{id}")
	flags.StringVar(&o.path, "path", "", "path of the request, such as /users/42")
	flags.StringVar(&o.host, "host", "", "host that the request is for")
	flags.StringArrayVar(&o.headers, "header", nil, "header of the request, NAME=VALUE; can be given several times")
	flags.StringArrayVar(&o.attributes, "attribute", nil, "what the application knows of the request, NAME=VALUE; can be given several times")
	flags.StringVar(&o.remote, "remote", "", "address of the peer, with or without a port")
	flags.StringSliceVar(&o.proxies, "trusted-proxies", nil, "networks whose X-Forwarded-For is believed, as the application has them")
}

// parse returns the request and the networks.
func (o *requestOptions) parse() (enforcer.Request, []netip.Prefix, error) {
	r := enforcer.Request{
		Method: strings.ToUpper(o.method), Host: o.host, Route: o.route, Path: o.path, Remote: o.remote,
		Header: http.Header{}, Attributes: map[string]string{},
	}
	if o.route == "" && o.path == "" {
		return r, nil, usageError{errors.New("--route or --path is missing: say which request it is")}
	}
	for _, text := range o.headers {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return r, nil, usageError{fmt.Errorf("--header %q: want NAME=VALUE", text)}
		}
		if strings.EqualFold(name, "Host") {
			r.Host = value
			continue
		}
		r.Header.Add(textproto.CanonicalMIMEHeaderKey(name), value)
	}
	for _, text := range o.attributes {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return r, nil, usageError{fmt.Errorf("--attribute %q: want NAME=VALUE", text)}
		}
		r.Attributes[name] = value
	}
	var proxies []netip.Prefix
	for _, text := range o.proxies {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return r, nil, usageError{fmt.Errorf("--trusted-proxies %q: want a network such as 10.0.0.0/8", text)}
		}
		proxies = append(proxies, network)
	}
	if o.remote != "" {
		if _, ok := enforcer.ClientAddr(o.remote, nil, nil); !ok {
			return r, nil, usageError{fmt.Errorf("--remote %q: want an address, with or without a port", o.remote)}
		}
	}
	return r, proxies, nil
}

// describe writes the request in one line.
func (o *requestOptions) describe() string {
	where := o.path
	if where == "" {
		where = o.route
	}
	return strings.ToUpper(o.method) + " " + where
}

// inForce is the row that decides about a workload, and where it was read.
type inForce struct {
	row    policy.Row
	source string // "Redis", or "API server"
	// replicas is the count that shares go by, 0 if nobody knows.
	replicas int
	members  int
}

// readRow returns the row in Redis or, without --redis, the one that the controller makes of the policies.
func readRow(ctx context.Context, api client.Client, redis *redisOptions, w policy.Workload) (inForce, error) {
	table, err := redis.inspect(ctx, w)
	if err != nil {
		return inForce{}, err
	}
	if table != nil {
		if table.Row == nil {
			return inForce{}, fmt.Errorf("%s: does a policy target it, and is it the right --table?", redis.noRow(w))
		}
		found := inForce{source: "Redis", members: len(table.Members)}
		if found.row, _, err = policy.DecodeRow(table.Row); err != nil {
			return found, fmt.Errorf("reading the row in Redis: %w", err)
		}
		if table.Replicas != nil {
			found.replicas = table.Replicas.N
		}
		return found, nil
	}
	objects, err := policiesOf(ctx, api, w)
	if err != nil {
		return inForce{}, err
	}
	found := inForce{source: "API server"}
	if found.row, err = compileObjects(w, objects); err != nil {
		return found, err
	}
	for i := range objects {
		if r := objects[i].Status.Replicas; r != nil {
			found.replicas = int(r.Counted)
		}
	}
	return found, nil
}

// explainer returns an enforcer with a row in force, which asks no store.
func explainer(ctx context.Context, row policy.Row, proxies []netip.Prefix) (*enforcer.Enforcer, error) {
	if row.Revision.IsZero() {
		row.Revision = policy.Revision{Epoch: "1", N: 1}
	}
	encoded, err := policy.EncodeRow(row)
	if err != nil {
		return nil, err
	}
	memory := memstore.New(memstore.Options{})
	// Not InProcess: identities must be those of the applications.
	e := enforcer.New(enforcer.Options{
		Store: memory, Local: memory, Table: enforcer.FixedRow(encoded), TrustedProxies: proxies,
	})
	return e, e.Poll(ctx)
}

// identityDigits is how much is shown of an identity's hexadecimal form.
const identityDigits = 12

// identityText is how an identity appears in Redis' keys in hexadecimal form, shortened.
func identityText(id enforcer.Identity) string { return hex.EncodeToString(id[:])[:identityDigits] }
