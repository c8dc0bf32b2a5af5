package kube

import (
	"net"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

// Several ups at the same time all end well, and start one cluster.
func TestUpTogether(t *testing.T) {
	c := newCluster(t)
	c.run(t, "down")
	var ups errgroup.Group
	for range 3 {
		ups.Go(func() error {
			if out, err := c.command(c.upArgs()...).CombinedOutput(); err != nil {
				t.Logf("coracle up: %s", out)
				return err
			}
			return nil
		})
	}
	if err := ups.Wait(); err != nil {
		t.Error(err)
	}
	c.kube(t, "get", "nodes")
}

// After down, down --purge still removes all that up has made: the end of the test looks for it.
func TestPurgeAfterDown(t *testing.T) {
	c := newCluster(t)
	c.apply(t, webDeployment("web", 1))
	c.await(t, "rollout", "status", "deployment/web")
	c.run(t, "down")
	c.run(t, "down")
}

// A port that somebody else has is told at once, and nothing is left that goes on trying.
func TestUpTellsWhatIsTaken(t *testing.T) {
	c := newCluster(t)
	c.run(t, "down")
	for address, want := range map[string]string{
		"127.0.0.1:6443": "something listens on 127.0.0.1:6443 already; stop it, or choose another --port",
		":10250":         "another kubelet may run on this machine",
	} {
		taken, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.command(c.upArgs()...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("with %s taken: %v, %s", address, err, out)
		}
		if err := taken.Close(); err != nil {
			t.Fatal(err)
		}
		if out, err := c.command("status").CombinedOutput(); err == nil || !strings.Contains(string(out), "it does not run") {
			t.Errorf("status after that: %v, %s", err, out)
		}
		c.run(t, "down")
	}
}
