package main

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// arguments that are enough, and then those of the case.
func arguments(more ...string) []string {
	return append([]string{"--redis-address=redis:6379", "--leader-election-namespace=weir-system"}, more...)
}

func environment(name string) string {
	return map[string]string{"WEIR_TABLE": "blue"}[name]
}

func TestParse(t *testing.T) {
	o, err := parse(arguments(
		"--redis-address=redis-1:6379, redis-2:6379", "--redis-sentinel-master=main", "--redis-db=3",
		"--namespaces=shop,cart", "--resync=1m", "--leader-elect=false",
	), environment, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"redis:6379", "redis-1:6379", "redis-2:6379"}, []string(o.redis.addresses)); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if o.table != "blue" {
		t.Errorf("table %q, want that of WEIR_TABLE", o.table)
	}
	if diff := cmp.Diff([]string{"shop", "cart"}, []string(o.namespaces)); diff != "" {
		t.Errorf("namespaces (-want +got):\n%s", diff)
	}
	if o.redis.db != 3 || o.redis.sentinelMaster != "main" || o.resync != time.Minute || o.leaderElect {
		t.Errorf("options %+v", o)
	}
}

func TestDefaults(t *testing.T) {
	o, err := parse(arguments(), func(string) string { return "" }, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if o.table != "default" || !o.leaderElect || o.resync != 30*time.Second || o.metrics != (metricsOptions{address: ":8443", secure: true, auth: true}) || o.probeAddress != ":8081" {
		t.Errorf("options %+v", o)
	}
}

func TestWrongFlagsAreOneLine(t *testing.T) {
	cases := map[string]struct {
		args []string
		want string
	}{
		"no Redis":                           {[]string{"--leader-election-namespace=weir-system"}, "--redis-address is required, unless --snapshots is given"},
		"flags of a Redis that is not named": {[]string{"--snapshots", "--redis-tls", "--leader-election-namespace=weir-system"}, "--redis-… need --redis-address"},
		"a Redis without port":               {arguments("--redis-address=redis"), `--redis-address: want host:port, got "redis"`},
		"an empty address":                   {arguments("--redis-address=a:1,,b:1"), `invalid value "a:1,,b:1" for flag -redis-address: has an empty item`},
		"no such flag":                       {arguments("--redis-host=redis:6379"), "flag provided but not defined: -redis-host"},
		"no number":                          {arguments("--redis-db=one"), `invalid value "one" for flag -redis-db: parse error`},
		"a negative number":                  {arguments("--redis-db=-1"), "--redis-db: want 0 or more, got -1"},
		"a database in a cluster": {
			arguments("--redis-address=redis-2:6379", "--redis-db=1"),
			"--redis-db: several addresses without --redis-sentinel-master are a Redis Cluster, which has only database 0",
		},
		"a user without password": {arguments("--redis-username=weir"), "--redis-username needs --redis-password-file"},
		"TLS files without TLS":   {arguments("--redis-tls-ca-file=ca.crt"), "--redis-tls-… need --redis-tls"},
		"a certificate without key": {
			arguments("--redis-tls", "--redis-tls-cert-file=tls.crt"), "--redis-tls-cert-file and --redis-tls-key-file go together",
		},
		"a table's name":            {arguments("--table=a:b"), `--table: table "a:b": want letters, digits, '-', '_' and '.' only`},
		"a namespace's name":        {arguments("--namespaces=shop,Cart"), `--namespaces: "Cart" is no name of a namespace`},
		"an address for metrics":    {arguments("--metrics-bind-address=8080"), `--metrics-bind-address: want host:port, :port or 0, got "8080"`},
		"tokens in the clear":       {arguments("--metrics-secure=false"), "--metrics-auth needs --metrics-secure: a token must not be sent in the clear"},
		"a key without certificate": {arguments("--metrics-tls-key-file=tls.key"), "--metrics-tls-cert-file and --metrics-tls-key-file go together"},
		"a certificate for nothing": {
			arguments("--metrics-secure=false", "--metrics-auth=false", "--metrics-tls-cert-file=tls.crt", "--metrics-tls-key-file=tls.key"),
			"--metrics-tls-… need --metrics-secure",
		},
		"a Sentinel's user without password": {
			arguments("--redis-sentinel-master=main", "--redis-sentinel-username=weir"),
			"--redis-sentinel-username needs --redis-sentinel-password-file",
		},
		"a Sentinel's password without Sentinel": {
			arguments("--redis-sentinel-password-file=password"), "--redis-sentinel-password-file needs --redis-sentinel-master",
		},
		"an address for probes":     {arguments("--health-probe-bind-address=x"), `--health-probe-bind-address: want host:port, :port or 0, got "x"`},
		"a resync without end":      {arguments("--resync=10ms"), "--resync: want at least 1s, got 10ms"},
		"something that is no flag": {arguments("serve"), `unexpected argument "serve"`},
		"no namespace of the Lease": {[]string{"--redis-address=redis:6379"}, "--leader-election-namespace is required outside of a pod"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := parse(c.args, environment, os.Stderr)
			if err == nil || err.Error() != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	var out strings.Builder
	if _, err := parse([]string{"--help"}, environment, &out); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"-redis-address", "-table", "-zap-log-level", "-kubeconfig"} {
		if !strings.Contains(out.String(), name) {
			t.Errorf("the usage does not tell of %s", name)
		}
	}
}

// The process itself: one line on stderr, nothing on stdout, exit code 2.
func TestTheProcessEndsWithCode2(t *testing.T) {
	path := filepath.Join(t.TempDir(), "manager")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	command := exec.Command(path, arguments("--redis-db=one")...)
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitUsage {
		t.Errorf("ended with %v, want exit code %d", err, exitUsage)
	}
	if want := "manager: invalid value \"one\" for flag -redis-db: parse error\n"; stderr.String() != want || stdout.Len() > 0 {
		t.Errorf("stderr %q, stdout %q; want %q and nothing", stderr.String(), stdout.String(), want)
	}
}

func TestThePasswordIsReadAnewForEachConnection(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	r := redisOptions{addresses: list{"redis:6379"}, username: "weir", passwordFile: file}
	if _, err := r.client(); err == nil {
		t.Error("a password file that does not exist was accepted")
	}
	for _, password := range []string{"first", "second"} {
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := r.password(); err != nil || got != password {
			t.Errorf("password %q (%v), want %q", got, err, password)
		}
	}
}
