//go:build upgrade

package kube

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/testkit"
)

const (
	// pause is between two requests, and answered is how long one may take.
	pause, answered = 10 * time.Millisecond, 5 * time.Second
	// leastRequests make a run worth something.
	leastRequests = 300
)

// load is what came of requests.
type load struct {
	requests, failed int
	twice            int   // how many failed twice in a row
	why              error // the last of these
	slowest          time.Duration
}

// ask sends a GET over a new connection, which is made in the caller's network.
func ask(address string) error {
	conn, err := net.DialTimeout("tcp", address, answered)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answered)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", address); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// ask sends one more request, and sends it again if it fails.
func (l *load) ask(address string) {
	l.requests++
	began := time.Now()
	first := ask(address)
	if first != nil {
		l.failed++
		if second := ask(address); second != nil {
			l.twice, l.why = l.twice+1, fmt.Errorf("%w, then %w", first, second)
		}
	}
	l.slowest = max(l.slowest, time.Since(began))
}

// sendLoad sends requests from the first pod's network until stop: only pods have a route to
// addresses of Services here, where the node has no default route.
func (c *cluster) sendLoad(t *testing.T, address string) (stop func() load) {
	t.Helper()
	networks, err := filepath.Glob(filepath.Join(c.state, "ns", "*", "net"))
	if err != nil || len(networks) == 0 {
		t.Fatalf("pods' network namespaces: %v, %v", networks, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var l load
	done := inNetwork(networks[0], func() error {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for ctx.Err() == nil {
			l.ask(address)
			<-tick.C
		}
		return nil
	})
	return func() load {
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return l
	}
}

// Upgrades under load: from the previous release's shim, one that is killed, and one to a cluster
// process that does not work. No container is started again, and no request through a Service fails
// twice in a row.
func TestUpgrade(t *testing.T) {
	c := installed(t)
	// The previous release's coracled does not know the flags that up gives it.
	installProgram(t, filepath.Dir(c.coracle), testkit.Bin(t, "previous", testkit.ShimExe))
	c.start(t)
	c.apply(t, webDeployment("web", 2))
	c.await(t, "rollout", "status", "deployment/web")
	c.kube(t, "expose", "deployment", "web", "--port", "8080")
	c.await(t, "wait", "endpointslice", "-l", "kubernetes.io/service-name=web", "--for=jsonpath={.endpoints[1].conditions.ready}=true")
	address := c.kube(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}") + ":8080"
	containers := func() string {
		return c.kube(t, "get", "pods", "-l", "app=web", "-o",
			"jsonpath={range .items[*]}{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount} {end}")
	}
	c.awaitWell(t)
	before := containers()
	stop := c.sendLoad(t, address)

	fresh := t.TempDir()
	for _, name := range programs {
		installProgram(t, fresh, testkit.Bin(t, name))
	}
	if out := c.run(t, "upgrade", fresh); !strings.Contains(out, "all is well with the new programs") {
		t.Errorf("upgrade says %s", out)
	}
	if version := c.run(t, "shim", "list"); strings.Contains(version, "v0.0.0-dev") {
		t.Errorf("the shim was not replaced: %s", version)
	}
	c.killUpgrade(t, fresh)
	if out := c.run(t, "upgrade"); !strings.Contains(out, "all is well with the new programs") {
		t.Errorf("upgrade after one that was killed says %s", out)
	}
	installBroken(t, fresh, "coracle-kube")
	out, err := c.command("upgrade", fresh, "--deadline", "1m").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "coracle: upgrade: the old programs run again: coracle up: ") {
		t.Errorf("an upgrade to a program that does not work: %v, %s", err, out)
	}
	c.checkNoUpgrade(t)
	if after := containers(); after != before {
		t.Errorf("containers and restarts %s, before %s", after, before)
	}
	l := stop()
	t.Logf("%d requests, %d failed once, the slowest took %v", l.requests, l.failed, l.slowest)
	if l.twice > 0 || l.requests < leastRequests {
		t.Errorf("%d of %d requests failed twice, the last with %v", l.twice, l.requests, l.why)
	}
}
