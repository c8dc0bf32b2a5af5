package main

import (
	"os"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/node/clusterinfo"
)

func TestReleaseOfTheCluster(t *testing.T) {
	for _, tc := range []struct {
		own, cluster string
		refused      bool
	}{
		{"v0.4.0", "v0.4.0", false},
		{"v0.4.3", "v0.4.0", false},
		{"v0.4.0", "v0.5.1", false},
		{"v0.5.0", "v0.4.9", true},
		{"v1.0.0", "v0.9.0", true},
		{"v0.5.0-3-gabcdef0", "v0.4.0", true},
		{"v0.5.0", "", false}, // of a release that did not say
		{"abcdef0", "v0.4.0", false},
		{"v0.5.0", "abcdef0", false},
		{"v0.5.0", "v99999999999999999999.0.0", false},
		{"v0.5.0", strings.Repeat("1.", 10_000), false},
	} {
		err := checkRelease(tc.own, tc.cluster)
		if (err != nil) != tc.refused || err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s joins %.20s: %v, want refused: %t", tc.own, tc.cluster, err, tc.refused)
		}
	}
}

// A machine that joins compares its release with the one that the cluster publishes.
func TestJoinOfANewerRelease(t *testing.T) {
	defer func(before string) { version = before }(version)
	root := t.TempDir()
	version = "v0.4.2"
	api := apiOptions{serviceCIDR: "10.96.0.0/16", podCIDR: []string{noPodCIDR}}
	settings, err := agentSettings(api, nodeOptions{dns: []string{noDNS}}, dnsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kube := fake.NewClientset()
	if err := clusterinfo.Publish(t.Context(), kube, "https://192.0.2.1:6443", nil, nil, settings); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(credentialsDir(root), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := firstSettings(root)(t.Context(), kube); err != nil {
		t.Errorf("of the same release: %v", err)
	}
	version = "v0.5.0"
	if err := firstSettings(root)(t.Context(), kube); err == nil ||
		!strings.Contains(err.Error(), "this machine has Coracle 0.5.0, newer than the cluster's 0.4.2") {
		t.Errorf("of a newer release: %v", err)
	}
}
