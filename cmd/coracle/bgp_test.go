package main

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/cmd/coracle/kubesocket"
	"github.com/coracle-project/coracle/cmd/coracle/kubesocket/kubesockettest"
)

var withPeers = upOptions{BGPAS: "64512", BGPPeers: []string{"10.0.0.254 as=64500", "fd00::fe as=64500"}}

// A peer is one argument, and only a cluster with peers has any.
func TestBGPArguments(t *testing.T) {
	p := place{root: "/r", state: "/s"}
	want := []string{"--dir", "/s/bgp", "--as", "64512", "--peer", "10.0.0.254 as=64500", "--peer", "fd00::fe as=64500"}
	if got := bgpArgs(p, withPeers); !reflect.DeepEqual(got, want) {
		t.Errorf("%q instead of %q", got, want)
	}
	agent := withPeers
	agent.Server = "https://10.0.0.1:6443"
	for _, o := range []upOptions{withPeers, agent} {
		if got := flagOf(kubeArgs(p, o), "--bgp-dir"); got != "/s/bgp" {
			t.Errorf("with peers, the cluster process writes routes to %q", got)
		}
		o.BGPPeers = nil
		if got := flagOf(kubeArgs(p, o), "--bgp-dir"); got != "" {
			t.Errorf("without peers, the cluster process writes routes to %q", got)
		}
	}
}

func TestBGPFlagsGoTogether(t *testing.T) {
	for want, o := range map[string]upOptions{
		"":                                      withPeers,
		"--bgp-as 64512 without --bgp-peer":     {BGPAS: "64512"},
		"--bgp-peer 10.0.0.1 without --bgp-as:": {BGPPeers: []string{"10.0.0.1"}},
	} {
		if err := o.checkBGP(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v instead of %q", err, want)
		}
	}
}

func TestBGPHealth(t *testing.T) {
	p := place{root: t.TempDir(), state: t.TempDir()}
	if got := bgpHealth(t.Context(), p); len(got) != 0 {
		t.Errorf("a cluster without peers has %+v", got)
	}
	if err := withPeers.remember(p); err != nil {
		t.Fatal(err)
	}
	if got := bgpHealth(t.Context(), p); len(got) != 1 || got[0].Healthy || !strings.Contains(got[0].Message, "it does not run; "+p.bgpLog()) {
		t.Errorf("while it does not run: %+v", got)
	}
	if err := os.Mkdir(p.bgp(), 0o755); err != nil {
		t.Fatal(err)
	}
	// One that was killed has left its socket.
	socket := filepath.Join(p.bgp(), "health.sock")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	if got := bgpHealth(t.Context(), p); len(got) != 1 || got[0].Healthy || !strings.Contains(got[0].Message, "it does not run; "+p.bgpLog()) {
		t.Errorf("when it was killed: %+v", got)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	kubesockettest.Serve(t, socket, map[string]http.HandlerFunc{
		"/healthz/parts": func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode([]kubesocket.Part{{Component: bgpPeer + "10.0.0.254", Message: "nothing listens"}})
		},
	})
	if got := bgpHealth(t.Context(), p); len(got) != 1 || got[0].Component != "BGP peer 10.0.0.254" || got[0].Message != "nothing listens" {
		t.Errorf("%+v", got)
	}
}

// An upgrade has routers keep the routes, and does not fail because of a router that is off.
func TestUpgradeWithBGP(t *testing.T) {
	bin := t.TempDir()
	u := &upgrade{place: place{root: t.TempDir(), state: t.TempDir()}, Swap: swap{Bin: bin}}
	if err := u.keepRoutes(); err != nil {
		t.Errorf("without coracle-bgp: %v", err)
	}
	if err := os.Mkdir(u.bgp(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := u.keepRoutes(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(u.bgp(), "keep")); errors.Is(err, os.ErrNotExist) {
		t.Error("coracle-bgp is not told to keep the routes")
	}
	for component, good := range map[string]bool{"BGP peer 10.0.0.254": true, "BGP": false, bgpProgram: false} {
		script := `#!/bin/sh
echo '[{"component": "` + component + `", "healthy": false, "message": "off"}]'; exit 1
`
		if err := os.WriteFile(filepath.Join(bin, "coracle"), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := u.well(t.Context()); (err == nil) != good {
			t.Errorf("%s is off: %v", component, err)
		}
	}
}
