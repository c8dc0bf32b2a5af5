package workload

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/daemon"
	"github.com/coracle-project/coracle/cmd/coracle/daemon/daemontest"
)

// Regression: a node whose coracled hangs kept commands about the other nodes waiting.
func TestNodeThatDoesNotAnswer(t *testing.T) {
	m := newMachine(t, "boat", "boat-2")
	daemontest.Serve(t, m[0].Socket, daemontest.Runtime{Pod: "first", Listed: make(chan struct{})})
	daemontest.Serve(t, m[1].Socket, daemontest.Runtime{Pod: "second"})
	w := &workload{daemon: daemon.New(m.Socket), machine: m, patience: time.Second}
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	all, nodeOf, missing := w.inventoryOfAll(cmd)
	if len(all.pods) != 1 || nodeOf["second"] != "boat-2" || missing == nil ||
		!strings.Contains(missing.Error(), "coracled has not answered within 1s") {
		t.Errorf("%v on %v, %v", all.pods, nodeOf, missing)
	}
}

// Regression: stats, top and events were about the first node of up --nodes.
func TestUsageAndEventsOfAllNodes(t *testing.T) {
	m := newMachine(t, "boat", "boat-2")
	daemontest.Serve(t, m[0].Socket, daemontest.Runtime{Pod: "first"})
	stop := daemontest.Serve(t, m[1].Socket, daemontest.Runtime{Pod: "second"})
	for _, args := range [][]string{{"stats", "-p"}, {"top", "-p", "--updates", "1"}} {
		out, err := m.run(t, args...)
		if err != nil || !regexp.MustCompile(`(?s)NODE.*\nboat +shop +first .*\nboat-2 +shop +second `).MatchString(out) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}

	lines, end := m.follow(t, "events")
	var seen []string
	for len(seen) < 2 && lines.Scan() {
		seen = append(seen, lines.Text())
	}
	slices.SortFunc(seen, func(a, b string) int { return len(a) - len(b) })
	if len(seen) != 2 || !strings.Contains(seen[0], "boat  pod shop/first") || !strings.Contains(seen[1], "boat-2  pod shop/second") {
		t.Errorf("events: %q, %v", seen, lines.Err())
	}
	if err := end(); err != nil {
		t.Errorf("events: %v", err)
	}

	stop() // the first is shown without it
	text, err := m.run(t, "stats", "-p")
	if err == nil || !strings.Contains(err.Error(), "node boat-2: ") || !strings.Contains(text, "first") {
		t.Errorf("without the second node: %v\n%s", err, text)
	}
	text, err = m.run(t, "top", "-p", "--updates", "1")
	if err != nil || !strings.Contains(text, "not shown: node boat-2: ") || !strings.Contains(text, "first") {
		t.Errorf("without the second node: %v\n%s", err, text)
	}
}

// Regression: top ended when one node did not answer and the others ran nothing.
func TestTopOfIdleNodes(t *testing.T) {
	m := newMachine(t, "boat", "boat-2")
	stop := daemontest.Serve(t, m[0].Socket, daemontest.Runtime{Idle: true})
	top := func() (string, error) { return m.run(t, "top", "--updates", "1") }
	if text, err := top(); err != nil || !strings.Contains(text, "not shown: node boat-2: ") {
		t.Errorf("a node that runs nothing: %v\n%s", err, text)
	}
	stop()
	if _, err := top(); err == nil {
		t.Error("no node answers, and top goes on")
	}
}

func TestEnterTheNodeThatHasIt(t *testing.T) {
	m := newMachine(t, "boat", "boat-2", "boat-3")
	for i, pod := range []string{"first", "second", "third"} {
		daemontest.Serve(t, m[i].Socket, daemontest.Runtime{Pod: pod})
	}
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	id, err := FindContainer(m, cmd, daemon.New(m.Socket), "first/main")
	if err != nil || id != "first-main" {
		t.Errorf("on the first node: %q, %v", id, err)
	}
	_, err = FindContainer(m, cmd, daemon.New(m.Socket), "third/main")
	if err == nil || err.Error() != "enter boat-3" {
		t.Errorf("on a further node: %v", err)
	}
	trace := m.command("trace", "second", "--address", m[2].Socket)
	if err := trace.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "no pod is called") {
		t.Errorf("asking another coracled: %v", err)
	}
}
