package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Regression: an up with fewer flags than the one before started the cluster with other settings.
func TestWhatUpRemembers(t *testing.T) {
	p := place{root: t.TempDir(), state: t.TempDir()}
	first := upOptions{
		Config: "/etc/c.toml", ShortNames: "none", Bind: "10.0.0.1", Port: 7443, Node: "boat", NodeIPs: []string{"10.0.0.1"},
		PodLogs: "/logs", CgroupRoot: "/c", Etcd: []string{"http://e:2379"}, EvictionHard: "memory.available<1Mi",
	}
	if err := first.remember(p); err != nil {
		t.Fatal(err)
	}
	defaults := upOptions{ShortNames: "docker.io", Bind: "127.0.0.1", Port: 6443, Node: "host", PodLogs: "/var/log/pods", CgroupRoot: "/coracle-kube"}
	for name, tc := range map[string]struct {
		given  []string
		change func(*upOptions)
		differ []string
	}{
		"no flags":        {},
		"the same":        {given: []string{"port"}, change: func(o *upOptions) { o.Port = 7443 }},
		"another":         {given: []string{"port"}, change: func(o *upOptions) { o.Port = 8443 }, differ: []string{"port"}},
		"another address": {given: []string{"node-ip", "port"}, change: func(o *upOptions) { o.NodeIPs, o.Port = []string{"10.0.0.2"}, 7443 }, differ: []string{"node-ip"}},
		"back to default": {given: []string{"port", "config"}, change: func(o *upOptions) { o.Config = "" }, differ: []string{"config", "port"}},
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
					case "config":
						want.Config = given.Config
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

// What a failed up wrote is taken back, but for what down --purge has to remove.
func TestForget(t *testing.T) {
	p := place{root: t.TempDir(), state: t.TempDir()}
	tried := upOptions{Port: 7443, Coracled: true, Boot: "now"}
	for _, before := range []upOptions{{}, {Port: 6443, Coracled: true}} {
		if err := tried.forget(p, before); err != nil {
			t.Fatal(err)
		}
		if got := remembered(p); got.Port != before.Port || !got.Coracled || got.Boot != "" {
			t.Errorf("after %+v: %+v", before, got)
		}
	}
	if err := (upOptions{Port: 7443}).forget(p, upOptions{}); err != nil || remembered(p).Port != 0 {
		t.Errorf("%v, %+v", err, remembered(p))
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
