package cluster

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weir-dev/weir/hack/dev/process"
)

//go:embed stages/*.yaml
var stageFiles embed.FS

const (
	serviceCIDR = "10.96.0.0/16"
	podCIDR     = "10.244.0.1/16"
	issuer      = "https://kubernetes.default.svc.cluster.local"
)

// settings are the folders, ports and files that the programs share.
type settings struct {
	dir        string
	assets     Assets
	ports      map[string]int
	kubeconfig string
	stages     []string
	credentials
}

// prepare writes all files and takes the ports.
func prepare(dir string, assets Assets) (*settings, error) {
	s := &settings{dir: dir, assets: assets, ports: map[string]int{}, kubeconfig: filepath.Join(dir, "kubeconfig")}
	if err := os.MkdirAll(filepath.Join(dir, "stages"), 0o700); err != nil {
		return nil, fmt.Errorf("creating the cluster's folder: %w", err)
	}
	taken := map[int]bool{}
	for _, name := range []string{"etcd", "etcd-peer", "kube-apiserver", "kwok"} {
		for s.ports[name] == 0 {
			port, err := process.FreePort()
			if err != nil {
				return nil, err
			}
			if !taken[port] {
				taken[port], s.ports[name] = true, port
			}
		}
	}
	var err error
	if s.credentials, err = createCredentials(dir); err != nil {
		return nil, err
	}
	if err := s.writeKubeconfig(s.kubeconfig, s.server(), s.token); err != nil {
		return nil, err
	}
	names, err := fs.Glob(stageFiles, "stages/*.yaml")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		content, err := stageFiles.ReadFile(name)
		if err != nil {
			return nil, err
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, fmt.Errorf("writing the stages of fake pods: %w", err)
		}
		s.stages = append(s.stages, path)
	}
	return s, nil
}

func (s *settings) server() string {
	return "https://127.0.0.1:" + strconv.Itoa(s.ports["kube-apiserver"])
}

func (s *settings) command(folder, name string, args ...string) process.Command {
	return process.Command{
		Name: name,
		Path: filepath.Join(folder, name),
		Args: args,
		Dir:  s.dir,
		Log:  filepath.Join(s.dir, name+".log"),
	}
}

func (s *settings) etcd() process.Command {
	client := fmt.Sprintf("http://127.0.0.1:%d", s.ports["etcd"])
	peer := fmt.Sprintf("http://127.0.0.1:%d", s.ports["etcd-peer"])
	return s.command(s.assets.ControlPlane, "etcd",
		"--name=default",
		"--data-dir="+filepath.Join(s.dir, "etcd"),
		"--listen-client-urls="+client,
		"--advertise-client-urls="+client,
		"--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer,
		"--initial-cluster=default="+peer,
		"--unsafe-no-fsync", // the data does not outlive the cluster
		"--log-level=warn",
	)
}

func (s *settings) apiServer(alone bool) process.Command {
	args := []string{
		"--etcd-servers=http://127.0.0.1:" + strconv.Itoa(s.ports["etcd"]),
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(s.ports["kube-apiserver"]),
		// Both are needed on a machine without a default route.
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--tls-cert-file=" + s.servingCertificate,
		"--tls-private-key-file=" + s.servingKey,
		"--token-auth-file=" + s.tokenFile,
		"--authorization-mode=RBAC",
		"--service-account-issuer=" + issuer,
		"--service-account-signing-key-file=" + s.serviceAccountKey,
		"--service-account-key-file=" + s.serviceAccountKey,
		"--service-cluster-ip-range=" + serviceCIDR,
		"--allow-privileged=true",
	}
	if alone {
		// Nobody creates the ServiceAccount that each pod would need.
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	return s.command(s.assets.ControlPlane, "kube-apiserver", args...)
}

func (s *settings) controllerManager() process.Command {
	return s.command(s.assets.ControlPlane, "kube-controller-manager",
		"--kubeconfig="+s.kubeconfig,
		"--leader-elect=false",
		"--secure-port=0",
		"--service-account-private-key-file="+s.serviceAccountKey,
		"--root-ca-file="+s.authority,
	)
}

func (s *settings) scheduler() process.Command {
	return s.command(s.assets.ControlPlane, "kube-scheduler",
		"--kubeconfig="+s.kubeconfig,
		"--leader-elect=false",
		"--secure-port=0",
	)
}

func (s *settings) kwok() process.Command {
	return s.command(s.assets.Kwok, "kwok",
		"--kubeconfig="+s.kubeconfig,
		"--manage-all-nodes=true",
		"--config="+strings.Join(s.stages, ","),
		"--cidr="+podCIDR,
		"--node-ip=127.0.0.1",
		"--server-address=127.0.0.1:"+strconv.Itoa(s.ports["kwok"]),
		"--node-lease-duration-seconds=40",
	)
}
