package main

import (
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"
)

// Regression: an up with fewer flags than the one before started the cluster with other settings.
func TestWhatUpRemembers(t *testing.T) {
	p := place{root: t.TempDir(), state: t.TempDir()}
	first := upOptions{
		Config: "/etc/c.toml", ShortNames: "none", Bind: "10.0.0.1", Port: 7443, KubeletPort: 10350, Node: "boat", NodeIPs: []string{"10.0.0.1"},
		PodLogs: "/logs", CgroupRoot: "/c", Etcd: []string{"http://e:2379"}, EvictionHard: "memory.available<1Mi", ServiceCIDR: "10.112.0.0/16",
		LoadBalancerCIDR: []string{"10.0.0.20-10.0.0.29"}, LoadBalancerInterface: "eth0",
		ClusterDomain: "boat.example", ClusterDNS: []string{"10.112.0.53"}, StubDomains: []string{"corp.example=10.0.0.53"},
		ResolvConf:       "/etc/upstream.conf",
		EncryptionConfig: "/etc/e.yaml", AuditPolicy: "/etc/a.yaml", AuditLog: "/var/log/a", AuditWebhook: "/etc/w", EtcdQuota: "8Gi",
		SchedulerConfig:      "/etc/s.yaml",
		AuthenticationConfig: "/etc/i.yaml", TokenWebhook: "/etc/t", TokenWebhookVersion: "v1", PodSecurity: "baseline",
		MonitorGrace: "30s", SigningDuration: "720h",
		Manifests: "/etc/m", Images: "/srv/i",
		Coracled: true, Boot: "this",
	}
	if err := first.remember(p); err != nil {
		t.Fatal(err)
	}
	if got := remembered(p).State; got != p.state {
		t.Errorf("the directory %q is remembered, want %s", got, p.state)
	}
	defaults := upOptions{
		ShortNames: "docker.io", Bind: "127.0.0.1", Port: 6443, Node: "host", PodLogs: "/var/log/pods",
		CgroupRoot: "/coracle-kube", ServiceCIDR: defaultServices,
	}
	for name, tc := range map[string]struct {
		given  []string
		change func(*upOptions)
		differ []string
	}{
		"no flags": {},
		"the same": {given: []string{"port"}, change: func(o *upOptions) { o.Port = 7443 }},
		"another":  {given: []string{"port"}, change: func(o *upOptions) { o.Port = 8443 }, differ: []string{"port"}},
		"another address": {given: []string{"node-ip", "port"}, change: func(o *upOptions) {
			o.NodeIPs, o.Port = []string{"10.0.0.2"}, 7443
		}, differ: []string{"node-ip"}},
		"other load balancers": {
			given: []string{"load-balancer-cidr"}, change: func(o *upOptions) {
				o.LoadBalancerCIDR = []string{"10.0.0.30"}
			}, differ: []string{"load-balancer-cidr"},
		},
		"back to default": {
			given: []string{"port", "runtime-config"}, change: func(o *upOptions) { o.Config = "" },
			differ: []string{"port", "runtime-config"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, want := defaults, first
			if tc.change != nil {
				tc.change(&o)
				for _, flag := range tc.given {
					given := o
					switch flag {
					case "port":
						want.Port = given.Port
					case "node-ip":
						want.NodeIPs = given.NodeIPs
					case "runtime-config":
						want.Config = given.Config
					case "load-balancer-cidr":
						want.LoadBalancerCIDR = given.LoadBalancerCIDR
					}
				}
			}
			differ := o.follow(remembered(p), func(flag string) bool { return slices.Contains(tc.given, flag) })
			if !slices.Equal(differ, tc.differ) {
				t.Errorf("%v differ, want %v", differ, tc.differ)
			}
			if diff := cmp.Diff(want, o, cmpopts.IgnoreUnexported(upOptions{})); diff != "" {
				t.Error(diff)
			}
		})
	}
	// Every flag of up is either remembered or for one time only.
	cmd := upCommand(&p)
	for flag := range first.settings() {
		if cmd.Flags().Lookup(flag) == nil {
			t.Errorf("up has no flag --%s", flag)
		}
	}
	data, err := json.Marshal(first)
	if err != nil || strings.Contains(string(data), "apply") {
		t.Errorf("%s, %v", data, err)
	}
}

// The settings of the DNS reach the cluster process, and its defaults hold without.
func TestDNSFlags(t *testing.T) {
	p := place{root: "/r", state: "/s"}
	has := func(o upOptions, flag, value string) bool {
		args := kubeArgs(p, o)
		i := slices.Index(args, flag)
		return i >= 0 && args[i+1] == value
	}
	o := upOptions{
		ClusterDomain: "boat.example", ClusterDNS: []string{"10.96.0.53", "fd00::53"}, StubDomains: []string{"a=10.0.0.1", "b=10.0.0.2"},
		ResolvConf:       "/etc/upstream.conf",
		EncryptionConfig: "/etc/e.yaml", AuditPolicy: "/etc/a.yaml", AuditLog: "/var/log/a", AuditWebhook: "/etc/w", EtcdQuota: "8Gi",
		SchedulerConfig:      "/etc/s.yaml",
		AuthenticationConfig: "/etc/i.yaml", TokenWebhook: "/etc/t", TokenWebhookVersion: "v1", PodSecurity: "baseline",
		MonitorGrace: "30s", SigningDuration: "720h",
		KubeletPort: 10350, PodCIDR: []string{"10.86.0.0/16", "fd86::/48"}, PodNetwork: "none",
	}
	for flag, value := range map[string]string{
		"--cluster-domain": "boat.example", "--cluster-dns": "10.96.0.53,fd00::53", "--dns-stub-domain": "a=10.0.0.1,b=10.0.0.2",
		"--resolv-conf":                "/etc/upstream.conf",
		"--encryption-provider-config": "/etc/e.yaml", "--audit-policy-file": "/etc/a.yaml", "--audit-log-path": "/var/log/a",
		"--audit-webhook-config-file": "/etc/w", "--etcd-quota": "8Gi", "--scheduler-config": "/etc/s.yaml",
		"--authentication-config": "/etc/i.yaml", "--authentication-token-webhook-config-file": "/etc/t",
		"--authentication-token-webhook-version": "v1", "--pod-security": "baseline",
		"--node-monitor-grace-period": "30s", "--cluster-signing-duration": "720h",
		"--kubelet-port": "10350", "--pod-cidr": "10.86.0.0/16,fd86::/48", "--pod-network": "none",
	} {
		if !has(o, flag, value) {
			t.Errorf("%s %s is missing in %q", flag, value, kubeArgs(p, o))
		}
		if slices.Contains(kubeArgs(p, upOptions{}), flag) {
			t.Errorf("%s is given without need", flag)
		}
	}
}

// Network policies are enforced unless up is told otherwise, which it remembers.
// Regression: - was the name of a file.
func TestAuditLogOnStandardOutput(t *testing.T) {
	var p place
	for path, want := range map[string]string{
		"-":   "up: --audit-log-path -: the cluster's standard output is its own log",
		"./-": "--timeout",
	} {
		cmd := upCommand(&p)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs([]string{"--audit-log-path", path})
		if path != "-" { // a file of that name is fine, so the next check fails
			cmd.SetArgs([]string{"--audit-log-path", path, "--timeout", "0s"})
		}
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", path, err, want)
		}
	}
}

func TestPoliciesOff(t *testing.T) {
	p := place{root: t.TempDir(), state: "/s"}
	const off = "--network-policies=false"
	parse := func(args ...string) (upOptions, []string) {
		t.Helper()
		var got upOptions
		var differ []string
		cmd := upCommand(&p)
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			if set, ok := cmd.Flags().Lookup("network-policies").Value.(*offFlag); ok {
				got.PoliciesOff = *set
			}
			differ = got.follow(remembered(p), cmd.Flags().Changed)
			return nil
		}
		cmd.SetArgs(append([]string{}, args...)) // of nil it would make the arguments of this program
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return got, differ
	}
	has := func(o upOptions) bool { return slices.Contains(kubeArgs(p, o), off) }
	if o, differ := parse(); has(o) || len(differ) > 0 {
		t.Errorf("by default: %q, %q", kubeArgs(p, o), differ)
	}
	o, differ := parse(off)
	if !has(o) || !slices.Equal(differ, []string{"network-policies"}) {
		t.Errorf("with %s: %q, %q", off, kubeArgs(p, o), differ)
	}
	said := o.differs("the cluster", differ, upOptions{}, "down")
	if want := "up --network-policies=false: the cluster runs with --network-policies=true;"; said == nil ||
		!strings.HasPrefix(said.Error(), want) {
		t.Errorf("%v, want %s", said, want)
	}
	o.Port = 6443
	if err := o.remember(p); err != nil {
		t.Fatal(err)
	}
	if again, differ := parse(); !has(again) || len(differ) > 0 {
		t.Errorf("the next time: %q, %q", kubeArgs(p, again), differ)
	}
	if on, differ := parse("--network-policies"); has(on) || len(differ) != 1 {
		t.Errorf("switched on: %q, %q", kubeArgs(p, on), differ)
	}
	cmd := upCommand(&p)
	cmd.SetArgs([]string{"--network-policies=perhaps"})
	cmd.SetErr(io.Discard)
	cmd.SetOut(io.Discard)
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "neither true nor false") {
		t.Errorf("%v", err)
	}
	if usage := upCommand(&p).UsageString(); !strings.Contains(usage, "--network-policies ") ||
		!strings.Contains(usage, "false if a network plugin does (default true)") {
		t.Errorf("%s", usage)
	}
}

// What an earlier release has remembered is followed, too.
func TestSettingsOfAnEarlierRelease(t *testing.T) {
	var last upOptions
	old := `{"coracled":true,"bind":"127.0.0.1","port":7443,"node":"boat","podLogs":"/var/log/pods","cgroupRoot":"/coracle-kube"}`
	if err := json.Unmarshal([]byte(old), &last); err != nil {
		t.Fatal(err)
	}
	o := upOptions{ShortNames: "docker.io", Port: 6443, Node: "host"}
	o.follow(last, func(string) bool { return false })
	if o.Port != 7443 || o.Node != "boat" || o.ShortNames != "docker.io" {
		t.Errorf("%+v", o)
	}
}

func TestWrongKubeletPorts(t *testing.T) {
	for port, want := range map[int]string{
		-1: "--kubelet-port -1 is not between", 65536: "--kubelet-port 65536 is not between",
		6443: "--kubelet-port 6443 is the API server's", 0: "", 10350: "",
	} {
		o := upOptions{
			Bind: "127.0.0.1", Port: 6443, KubeletPort: port, ServiceCIDR: defaultServices, PodLogs: "/l", CgroupRoot: "/c",
			timeout: time.Second,
		}
		if err := o.check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("port %d: %v, want %q", port, err, want)
		}
	}
}

// Names without a registry are Docker's under up, and refused by a bare coracled.
func TestShortNamesOfUp(t *testing.T) {
	p := place{root: "/r", state: "/s"}
	for setting, want := range map[string]bool{"docker.io": true, refuseShortNames: false} {
		args := coracledArgs(p, upOptions{ShortNames: setting})
		i := slices.Index(args, "--short-name-registry")
		if got := i >= 0 && args[i+1] == setting; got != want {
			t.Errorf("%s: %q", setting, args)
		}
	}
	if got := upCommand(&p).Flags().Lookup("short-name-registry").DefValue; got != "docker.io" {
		t.Errorf("default %q", got)
	}
}

// What is remembered can be what it was, nothing included.
func TestRestore(t *testing.T) {
	p := place{root: t.TempDir(), state: t.TempDir()}
	for _, before := range []upOptions{
		{Port: 6443, Coracled: true, Boot: "now", ServiceCIDR: defaultServices, State: "/run/other"}, {},
	} {
		if err := (upOptions{Port: 7443}).remember(p); err != nil {
			t.Fatal(err)
		}
		if err := before.restore(p); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, remembered(p), cmpopts.IgnoreUnexported(upOptions{})); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := os.Stat(p.settings()); !os.IsNotExist(err) {
		t.Errorf("nothing was remembered, and the file is there: %v", err)
	}
}

// Regression: --etcd-servers "" was refused on a cluster that has the built-in etcd.
func TestAnEmptyListIsNoChange(t *testing.T) {
	for _, last := range []upOptions{{}, {Etcd: []string{}}} {
		o := upOptions{Etcd: []string{}}
		if differ := o.follow(last, func(flag string) bool { return flag == "etcd-servers" }); len(differ) != 0 {
			t.Errorf("after %q: %q", last.Etcd, differ)
		}
	}
	o := upOptions{Etcd: []string{}}
	if differ := o.follow(upOptions{Etcd: []string{"http://e:2379"}}, func(flag string) bool {
		return flag == "etcd-servers"
	}); !slices.Equal(differ, []string{"etcd-servers"}) {
		t.Errorf("the built-in etcd instead of another: %q", differ)
	}
}

func TestReasonIsOneLine(t *testing.T) {
	for log, want := range map[string]string{
		"":                       "",
		"time=1 msg=a\ntime=2\n": "time=2",
		"time=1 msg=a\ncoracle-kube: port taken\ncoracle: the cluster process cannot be started": "port taken",
	} {
		path := t.TempDir() + "/log"
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := reason(path); got != want {
			t.Errorf("%q: %q, want %q", log, got, want)
		}
	}
}
