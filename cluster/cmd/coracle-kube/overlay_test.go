package main

import (
	"errors"
	"os"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/node/clusterinfo"
	"github.com/coracle-project/coracle/cluster/overlay/wireguard"
)

// A machine that cannot encrypt neither starts a cluster that does nor joins one.
func TestEncryptionNeedsTheKernel(t *testing.T) {
	k, missing := wireguard.Open()
	if missing == nil {
		k.Close()
	} else if !errors.Is(missing, wireguard.ErrMissing) {
		t.Fatal(missing)
	}
	for _, network := range []string{"auto", "none", "cni", "wireguard"} {
		want := missing
		if network != "wireguard" {
			want = nil
		}
		if err := checkPodNetwork(network); !errors.Is(err, want) {
			t.Errorf("--pod-network %s: %v, want %v", network, err, want)
		}
		kube := fake.NewClientset()
		err := clusterinfo.Publish(t.Context(), kube, "https://192.0.2.1:6443", nil, nil, clusterinfo.Settings{PodNetwork: network})
		if err != nil {
			t.Fatal(err)
		}
		root := t.TempDir()
		if err := os.Mkdir(credentialsDir(root), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := firstSettings(root)(t.Context(), kube); !errors.Is(err, want) {
			t.Errorf("join with %s: %v, want %v", network, err, want)
		}
		if _, known, err := lastSettings(settingsFile(root)); err != nil || known != (want == nil) {
			t.Errorf("settings of a machine that joins with %s: %t, %v", network, known, err)
		}
	}
}
