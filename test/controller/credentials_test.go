package controller

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-dev/weir/api/v1alpha1"
	"github.com/weir-dev/weir/hack/dev/process"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
	"github.com/weir-dev/weir/test/env"
	"github.com/weir-dev/weir/test/kube"
)

// acl is the controller's user, with the default user open for the test itself.
func acl(t *testing.T, table, password string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "config", "redis", "controller.acl"))
	if err != nil {
		t.Fatal(err)
	}
	return "user default on nopass ~* &* +@all\n" + strings.NewReplacer("TABLE", table, "PASSWORD", password).Replace(string(text))
}

// secret writes a file as a mounted Secret has it.
func secret(t *testing.T, file, value string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
}

const (
	firstPassword  = "tJ4-first-secret"
	secondPassword = "tJ4-second-secret"
	wrongPassword  = "tJ4-wrong-secret"
)

// Redis with mutual TLS, the user of config/redis and a database other than 0. Password, authority and client certificate
// are replaced while the controller runs; none of them is ever in its log.
func TestPasswordAndCertificatesAreReplacedWhileItRuns(t *testing.T) {
	t.Parallel()
	c := kube.APIServer(t)
	i := install(t, c)
	i.looksAfter = []string{createNamespace(t, c, "shop")}
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	files := newCertificates(t, t.TempDir())
	server := env.Redis(t, env.RedisOptions{
		ACL: acl(t, i.namespace, firstPassword),
		Config: []string{
			"tls-port " + strconv.Itoa(port), "tls-auth-clients yes",
			"tls-ca-cert-file " + files.ca, "tls-cert-file " + files.cert, "tls-key-file " + files.key,
		},
	})
	w := newWorkload(t, c, i.looksAfter[0], server.Addr, i.namespace)
	const database = 3
	w.redis = redisstore.NewClient(&redis.UniversalOptions{Addrs: []string{server.Addr}, DB: database})
	t.Cleanup(func() { _ = w.redis.Close() })
	password := filepath.Join(t.TempDir(), "password")
	secret(t, password, firstPassword+"\n")

	m := i.start(net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), "--resync=1s", "--zap-log-level=10",
		"--redis-username=weir-controller", "--redis-password-file="+password, "--redis-db="+strconv.Itoa(database),
		"--redis-tls", "--redis-tls-ca-file="+files.ca, "--redis-tls-cert-file="+files.cert, "--redis-tls-key-file="+files.key)
	w.deploy(1)
	w.limit("login", 5)
	w.waitRow(hasPolicies("login"))
	w.waitCondition("login", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)

	// What a rotation does: new files, then a server that takes nothing but them. Every connection starts anew.
	newCertificates(t, files.dir)
	secret(t, password, secondPassword+"\n")
	for _, command := range [][]any{
		{"CONFIG", "SET", "tls-ca-cert-file", files.ca, "tls-cert-file", files.cert, "tls-key-file", files.key},
		{"ACL", "SETUSER", "weir-controller", "resetpass", ">" + secondPassword},
		{"CLIENT", "KILL", "USER", "weir-controller"},
	} {
		if err := w.redis.Do(t.Context(), command...).Err(); err != nil {
			t.Fatalf("%v: %v", command[:2], err)
		}
	}
	generation := w.edit(func(p *v1alpha1.RateLimitPolicy) { p.Spec.Rules[0].Limits[0].Requests = new(int64(6)) })
	w.waitRow(func(row policy.Row) error {
		if row.Policies[0].Generation != generation {
			return errors.New("the edit is not written")
		}
		return nil
	})
	noSecrets(t, m)
}

func TestAWrongPasswordIsToldWithoutIt(t *testing.T) {
	t.Parallel()
	c := kube.APIServer(t)
	i := install(t, c)
	i.looksAfter = []string{createNamespace(t, c, "shop")}
	server := env.Redis(t, env.RedisOptions{ACL: acl(t, i.namespace, firstPassword)})
	w := newWorkload(t, c, i.looksAfter[0], server.Addr, i.namespace)
	password := filepath.Join(t.TempDir(), "password")
	secret(t, password, wrongPassword)
	m := i.start(server.Addr, "--resync=1s", "--zap-log-level=10", "--redis-username=weir-controller", "--redis-password-file="+password)
	w.deploy(1)
	w.limit("login", 5)
	w.waitCondition("login", v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonStoreUnreachable)
	eventually(t, func(context.Context) error {
		if !strings.Contains(m.logged(), "WRONGPASS") {
			return errors.New("the log does not say that the password is wrong")
		}
		return nil
	})
	secret(t, password, firstPassword)
	w.waitRow(hasPolicies("login"))
	noSecrets(t, m)
}

func noSecrets(t *testing.T, m *manager) {
	t.Helper()
	log := m.logged()
	for _, password := range []string{firstPassword, secondPassword, wrongPassword} {
		if strings.Contains(log, password) {
			t.Errorf("the log has the password %s", password)
		}
	}
	if strings.Contains(log, "PRIVATE KEY") {
		t.Error("the log has a private key")
	}
}

// The Sentinels have a user of their own, as config/redis describes it.
func TestSentinelsWithAUserOfTheirOwn(t *testing.T) {
	t.Parallel()
	c := kube.APIServer(t)
	servers := env.Sentinel(t)
	for _, address := range servers.Addrs {
		sentinel := redis.NewClient(&redis.Options{Addr: address, DisableIdentity: true, Protocol: 2})
		t.Cleanup(func() { _ = sentinel.Close() })
		err := sentinel.Do(t.Context(), "ACL", "SETUSER", "weir", "on", ">"+firstPassword, "resetchannels", "&*", "-@all",
			"+sentinel|get-master-addr-by-name", "+sentinel|sentinels", "+sentinel|replicas", "+ping", "+subscribe").Err()
		if err != nil {
			t.Fatal(err)
		}
	}
	i := install(t, c)
	i.looksAfter = []string{createNamespace(t, c, "shop")}
	password := filepath.Join(t.TempDir(), "password")
	secret(t, password, firstPassword)
	i.start(strings.Join(servers.Addrs, ","), "--redis-sentinel-master="+servers.Master,
		"--redis-sentinel-username=weir", "--redis-sentinel-password-file="+password)
	w := newWorkload(t, c, i.looksAfter[0], servers.Primary.Addr, i.namespace)
	w.deploy(1)
	w.limit("login", 5)
	w.waitRow(hasPolicies("login"))
	users := 0
	for _, address := range servers.Addrs {
		sentinel := redis.NewClient(&redis.Options{Addr: address, DisableIdentity: true, Protocol: 2})
		list, err := sentinel.Do(t.Context(), "CLIENT", "LIST").Text()
		_ = sentinel.Close()
		if err != nil {
			t.Fatal(err)
		}
		users += strings.Count(list, "user=weir ")
	}
	if users == 0 {
		t.Error("no Sentinel has a client of the user weir")
	}
}
