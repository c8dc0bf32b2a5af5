package main

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	"github.com/coracle-project/coracle/cluster/pki"
)

var discard = slog.New(slog.DiscardHandler)

// try runs the command line and returns what it prints.
func try(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := command(discard, &slog.LevelVar{}, nil)
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestWhatIsPrinted(t *testing.T) {
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"--version"}, []string{"coracle-kube v0.0.0-dev (Kubernetes v"}},
		{[]string{"--help"}, []string{"coracle-kube server --cri", "apiserver", "completion", "--log-level"}},
		{[]string{"server", "--help"}, []string{
			"Examples:", "--root", "--state", "--bind-address", "--etcd-servers", "--static-pod-dir",
			"--token-file", "--service-cidr", "--load-balancer-cidr", "--load-balancer-interface", "--audit-policy-file", "--audit-log-maxsize",
			"--encryption-provider-config", "--etcd-quota", "--scheduler-config", "--authentication-config",
			"--authentication-token-webhook-config-file", "--pod-security", "--node-monitor-grace-period", "--cluster-signing-duration",
		}},
		{[]string{"apiserver", "--help"}, []string{"Examples:", "--kubeconfig-out"}},
		{[]string{"scheduler", "--help"}, []string{"Examples:", "--kubeconfig", "--scheduler-config"}},
		{[]string{"controllers", "--help"}, []string{"Examples:", "--cluster-ca"}},
		{[]string{"kubelet", "--help"}, []string{"Examples:", "--cri", "--client-ca"}},
		{[]string{"dns", "--help"}, []string{"Examples:", "--cluster-dns", "--dns-stub-domain", "--resolv-conf"}},
		{[]string{"proxy", "--help"}, []string{"Examples:", "--kubeconfig", "--node-name", "--service-cidr", "remove"}},
		{[]string{"proxy", "remove", "--help"}, []string{"Examples:", "--table"}},
		{[]string{"policy", "--help"}, []string{"Examples:", "--kubeconfig", "--node-name", "--pod-cidr", "remove"}},
		{[]string{"policy", "remove", "--help"}, []string{"Examples:", "--table"}},
		{[]string{"load-balancers", "--help"}, []string{"Examples:", "remove"}},
		{[]string{"load-balancers", "remove", "--help"}, []string{"Examples:", "--sink"}},
		{[]string{"overlay", "--help"}, []string{"Examples:", "remove", "proto 86"}},
		{[]string{"overlay", "remove", "--help"}, []string{"Examples:", "--port"}},
		{[]string{"snapshot", "--help"}, []string{"save", "check", "restore"}},
		{[]string{"completion", "bash"}, []string{"bash completion"}},
	} {
		out, err := try(t, test.args...)
		if err != nil {
			t.Errorf("%v: %v", test.args, err)
		}
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%v does not print %q but:\n%s", test.args, want, out)
			}
		}
	}
}

func TestWrongFlags(t *testing.T) {
	if !ownNetwork(t) { // a check says, too, what listens on the default ports
		return
	}
	dir := t.TempDir()
	place := []string{"--root", dir, "--state", filepath.Join(dir, "run")}
	node := []string{"--node-name", "n", "--node-ip", "127.0.0.1"}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"run-it"}, `unknown command "run-it"`},
		{[]string{"server", "--prot", "1"}, "unknown flag: --prot"},
		{[]string{"server", "now"}, `takes flags only, and does not know what to do with "now"`},
		{[]string{"server", "--log-level", "loud"}, `--log-level "loud" is none of debug, info, warn and error`},
		{[]string{"server", "--port", "0"}, "--port 0 is not between 1 and 65535"},
		{[]string{"server", "--port", "30000"}, "--port 30000 is one of the node ports of Services, 30000-32767: choose a port outside of them"},
		{[]string{"apiserver", "--port", "32767"}, "--port 32767 is one of the node ports of Services"},
		{
			append([]string{"server", "--check", "--kubelet-port", "31000"}, node...),
			"--kubelet-port 31000 is one of the node ports of Services, 30000-32767",
		},
		{
			append([]string{"server", "--check", "--port", "32768", "--kubelet-port", "32767"}, node...),
			"--kubelet-port 32767 is one of the node ports of Services",
		},
		{append([]string{"server", "--kubelet-port", "32767"}, node...), "--kubelet-port 32767 is one of the node ports of Services"},
		{[]string{"server", "--port", "x"}, "invalid argument"},
		{[]string{"server", "--cri", "/run/x.sock"}, `--cri "/run/x.sock" is no socket, such as unix:///run/coracle/coracle.sock`},
		{[]string{"server", "--node-ip", "here"}, `--node-ip "here" is no IP address, such as 10.0.0.1`},
		{[]string{"server", "--cluster-domain", "my cluster"}, `--cluster-domain "my cluster" is no domain, such as cluster.local: `},
		{[]string{"server", "--static-pod-dir", "/nonexistent"}, "--static-pod-dir: stat /nonexistent: no such file or directory"},
		{[]string{"server", "--static-pod-dir", file}, "is no directory"},
		{
			[]string{"server", "--eviction-hard", "nodefs.available<lots"},
			`eviction threshold "nodefs.available<lots": "lots" is no amount above 0, such as 100Mi or 5%`,
		},
		{append([]string{"server", "--bind-address", "x"}, node...), `--bind-address "x" is no IP address`},
		{append([]string{"server", "--check", "--port", port}, node...), "something listens on 127.0.0.1:" + port + " already"},
		{append([]string{"server", "--check", "--bind-address", "x"}, node...), `--bind-address "x" is no IP address`},
		{append([]string{"server", "--cluster-dns", "here"}, node...), `--cluster-dns "here" is no IP address, such as 10.96.0.10, nor none`},
		{
			append([]string{"server", "--check", "--service-cidr", "10.96.0.0/29"}, node...),
			`--service-cidr 10.96.0.0/29 has no tenth address for the cluster's DNS: choose a larger network, or --cluster-dns none`,
		},
		{
			append([]string{"server", "--resolv-conf", "/nonexistent"}, node...),
			"--resolv-conf: read name servers: open /nonexistent: no such file or directory",
		},
		{
			append([]string{"server", "--dns-stub-domain", "corp.example"}, node...),
			`--dns-stub-domain "corp.example" is not DOMAIN=ADDRESS, such as corp.example=10.0.0.53`,
		},
		{
			append([]string{"server", "--dns-stub-domain", "corp.example=ns"}, node...),
			`--dns-stub-domain "corp.example=ns" is not DOMAIN=ADDRESS`,
		},
		{append([]string{"server", "--dns-stub-domain", "a..b=10.0.0.53"}, node...), `--dns-stub-domain "a..b=10.0.0.53" is not DOMAIN=ADDRESS`},
		{append([]string{"server", "--service-cidr", "x"}, node...), `--service-cidr "x" is no network`},
		{append([]string{"server", "--check", "--service-cidr", "10.96.0.0"}, node...), `--service-cidr "10.96.0.0" is no network`},
		{
			append([]string{"server", "--check", "--allowed-unsafe-sysctls", "vm.swappiness"}, node...),
			`--allowed-unsafe-sysctls: allowed sysctl "vm.swappiness" belongs to the node`,
		},
		{append([]string{"server", "--check", "--container-log-max-files", "1"}, node...), "--container-log-max-files: at most 1 log files"},
		{append([]string{"server", "--check", "--container-log-max-files", "0"}, node...), "--container-log-max-files: at most 0 log files"},
		{
			append([]string{"server", "--check", "--pod-max-pids", "0"}, node...),
			"--pod-max-pids 0 leaves no pod a process; -1 is without a limit",
		},
		{append([]string{"server", "--check", "--max-pods", "0"}, node...), "--max-pods 0 is no number of pods above 0"},
		{append([]string{"server", "--check", "--kubelet-port", "0"}, node...), "--kubelet-port 0 is not between 1 and 65535"},
		{
			append([]string{"server", "--load-balancer-cidr", "many"}, node...),
			`--load-balancer-cidr: "many" is no range of addresses, such as 192.168.1.240/28`,
		},
		{
			append([]string{"server", "--load-balancer-cidr", "10.96.7.0/24"}, node...),
			"--load-balancer-cidr 10.96.7.0-10.96.7.255 overlaps --service-cidr 10.96.0.0/16",
		},
		{
			append([]string{"server", "--check", "--load-balancer-interface", "eth0"}, node...),
			"--load-balancer-interface eth0 is for addresses of --load-balancer-cidr",
		},
		{append([]string{"server", "--check", "--bgp-dir", "bgp"}, node...), `--bgp-dir "bgp" is no absolute path`},
		{
			append([]string{"server", "--check", "--pod-network", "wireguard", "--pod-cidr", "none"}, node...),
			"--pod-network wireguard needs networks of pods",
		},
		{append([]string{"server", "--check", "--pod-network", "bgp"}, node...), `--pod-network "bgp" is unknown: give auto, none, cni or wireguard`},
		{append([]string{"server", "--check", "--encryption-provider-config", file}, node...), "--encryption-provider-config " + file},
		{append([]string{"server", "--encryption-provider-config", "/nonexistent"}, node...), "--encryption-provider-config: open /nonexistent"},
		{
			append([]string{"server", "--check", "--audit-log-path", "/nonexistent"}, node...),
			"--audit-log-path records nothing without --audit-policy-file",
		},
		{append([]string{"server", "--audit-log-path", "/nonexistent", "--audit-policy-file", file}, node...), "--audit-policy-file " + file},
		{append([]string{"server", "--check", "--scheduler-config", file}, node...), "--scheduler-config " + file},
		{append([]string{"server", "--scheduler-config", "/nonexistent"}, node...), "--scheduler-config: open /nonexistent"},
		{append([]string{"server", "--etcd-quota", "1Mi"}, node...), "a cluster needs at least 16Mi"},
		{append([]string{"server", "--node-monitor-grace-period", "19s"}, node...), "--node-monitor-grace-period 19s is less than 20s"},
		{append([]string{"server", "--check", "--cluster-signing-duration", "119s"}, node...), "--cluster-signing-duration 1m59s is less than 2m0s"},
		{append([]string{"server", "--etcd-quota", "lots"}, node...), "invalid argument"},
		{
			append([]string{"server", "--etcd-quota", "1Gi", "--etcd-servers", "http://127.0.0.1:1"}, node...),
			"--etcd-quota is for the built-in etcd",
		},
		{append([]string{"server", "--check", "--authentication-config", file}, node...), "--authentication-config " + file},
		{append([]string{"server", "--authentication-config", "/nonexistent"}, node...), "--authentication-config: open /nonexistent"},
		{
			append([]string{"server", "--check", "--authentication-token-webhook-config-file", file}, node...),
			"--authentication-token-webhook-config-file " + file,
		},
		{
			append([]string{"server", "--authentication-token-webhook-config-file", file, "--authentication-token-webhook-version", "v2"}, node...),
			`--authentication-token-webhook-version "v2" is neither v1 nor v1beta1`,
		},
		{
			append([]string{"server", "--check", "--pod-security", "Restricted"}, node...),
			`--pod-security "Restricted" is none of privileged, baseline and restricted`,
		},
		{[]string{"snapshot", "restore"}, "accepts 1 arg(s)"},
		{[]string{"apiserver", "--token-file", "/nonexistent"}, "/nonexistent: no such file"},
		{[]string{"apiserver", "--port", port}, "something listens on 127.0.0.1:" + port + " already; stop it, or choose another --port"},
		{[]string{"scheduler"}, `required flag(s) "kubeconfig" not set`},
		{[]string{"scheduler", "--kubeconfig", "/nonexistent"}, "--kubeconfig /nonexistent cannot be used"},
		{[]string{"controllers", "--kubeconfig", file}, "cannot be used"},
		{[]string{"kubelet", "--kubeconfig", file}, "cannot be used"},
		{[]string{"proxy", "--kubeconfig", file}, "cannot be used"},
		{[]string{"policy", "--kubeconfig", file}, "cannot be used"},
		{[]string{"policy"}, `required flag(s) "kubeconfig" not set`},
		{[]string{"proxy"}, `required flag(s) "kubeconfig" not set`},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			args := test.args
			if args[0] == "server" || args[0] == "apiserver" {
				args = append(args, place...)
			}
			_, err := try(t, args...)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
}

func TestAdministratorsKubeconfigIsWrittenWhereWanted(t *testing.T) {
	dir := t.TempDir()
	o := apiOptions{root: dir, state: dir, bind: "0.0.0.0", port: 7443, kubeconfigOut: filepath.Join(dir, "out")}
	if _, err := o.credentials("n", []string{"10.0.0.9"}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(o.kubeconfigOut)
	if err != nil || !strings.Contains(string(data), "server: https://127.0.0.1:7443") {
		t.Errorf("%v: %s", err, data)
	}
	if info, err := os.Stat(o.kubeconfigOut); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// Regression: a key that all control-plane nodes have in common, and that was damaged on one, was
// made again there: what that node signed, no other trusted.
func TestKeysInCommonAreNotMadeAgain(t *testing.T) {
	dir := t.TempDir()
	keys := filepath.Join(dir, "pki")
	o := apiOptions{root: dir, state: dir, bind: "127.0.0.1", port: 7443}
	if _, err := o.credentials("n", nil); err != nil {
		t.Fatal(err)
	}
	common, err := pki.Shared(keys, nil)
	if err != nil || len(common) < 4 {
		t.Fatalf("%d files in common, %v", len(common), err)
	}
	peers := etcd.Peers{Name: "n", URL: "https://127.0.0.1:2380"}
	if err := peers.Write(dir); err != nil {
		t.Fatal(err)
	}
	for name, content := range common {
		path := filepath.Join(keys, name)
		for what, damage := range map[string]func() error{
			"damaged": func() error { return os.WriteFile(path, content[:len(content)/3], 0o600) },
			"missing": func() error { return os.Remove(path) },
		} {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadFile(path)
			if _, err := o.credentials("n", nil); err == nil || !strings.Contains(err.Error(), path+" is "+what) {
				t.Errorf("%s is %s: %v", name, what, err)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
				t.Errorf("%s was %s and is changed", name, what)
			}
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := o.credentials("n", nil); err != nil {
		t.Errorf("with all of them: %v", err)
	}
	// Who is forced to go on alone has no others who would trust the former.
	if err := os.Remove(filepath.Join(keys, "front-proxy-ca.pem")); err != nil {
		t.Fatal(err)
	}
	peers.Force = true
	if err := peers.Write(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := o.credentials("n", nil); err != nil {
		t.Errorf("forced to go on alone: %v", err)
	}
}
