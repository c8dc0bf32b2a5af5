package network

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Regression: when another program had flushed all rules, as a restart of nftables.service does,
// the pods' table was missing until the next pod came: pods reached nothing beyond the host, host
// ports led nowhere, and pods could send with any address.
func TestTableThatAnotherProgramChanges(t *testing.T) {
	logged := &logText{}
	c := testConfig(t)
	c.Log = slog.New(slog.NewTextHandler(logged, nil))
	m := New(c)
	waits := make(chan struct{}, 100)
	m.builtin.tableWatch.waits = func() { waits <- struct{}{} }
	m = startedOf(t, c, m)
	connect(t, m, "a", PortMapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	told, err := mdnetlink.Dial(unix.NETLINK_NETFILTER, nil)
	must(t, err)
	defer told.Close()
	must(t, told.JoinGroup(unix.NFNLGRP_NFTABLES))
	must(t, told.SetReadDeadline(time.Now().Add(time.Minute)))
	other, err := nftables.New()
	must(t, err)
	table := tableOf(m)
	// The library does not wrap all errors.
	gone := func(err error) bool { return err != nil && strings.HasSuffix(err.Error(), unix.ENOENT.Error()) }
	// state counts the rules, and the elements that the pod has.
	state := func() (count int) {
		t.Helper()
		chains, err := other.ListChainsOfTableFamily(nftables.TableFamilyINet)
		if gone(err) { // there is not even one table
			return 0
		}
		must(t, err)
		for _, chain := range chains {
			if chain.Table.Name != table.Name {
				continue
			}
			rules, err := other.GetRules(table, chain)
			if gone(err) {
				continue
			}
			must(t, err)
			count += len(rules)
		}
		for _, name := range []string{"pods4", "pods6", "ports4", "ports6"} {
			elements, err := other.GetSetElements(&nftables.Set{Table: table, Name: name})
			if gone(err) {
				continue
			}
			must(t, err)
			count += len(elements)
		}
		return count
	}
	whole := state()
	await := func(what string) {
		t.Helper()
		for got := -1; got != whole; {
			if _, err := told.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
				t.Fatalf("%s: %d rules and elements, want %d: %v", what, got, whole, err)
			}
			got = state()
		}
	}
	<-waits
	changes := map[string]func(){
		"flush ruleset": other.FlushRuleset,
		"delete table":  func() { other.DelTable(table) },
		"flush chain":   func() { other.FlushChain(&nftables.Chain{Table: table, Name: "sources"}) },
		"flush set":     func() { other.FlushSet(&nftables.Set{Table: table, Name: "pods4"}) },
		"another rule": func() {
			other.AddRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Table: table, Name: "to_pods"}})
		},
	}
	for what, change := range changes {
		change()
		must(t, other.Flush())
		await(what)
		<-waits // for the next one
	}
	// Changes of other tables do not matter, nor its own.
	connect(t, m, "b")
	others := other.AddTable(&nftables.Table{Name: "others", Family: nftables.TableFamilyINet})
	must(t, other.Flush())
	other.DelTable(others)
	other.DelTable(table)
	must(t, other.Flush())
	whole += 2 // elements of b
	await("delete table")
	<-waits
	if n := logged.count("restoring it"); n != len(changes)+1 {
		t.Errorf("restored %d times after %d changes", n, len(changes)+1)
	}
}

// Regression: after an error of its socket the table was never watched again.
func TestTableIsWatchedAgain(t *testing.T) {
	c := testConfig(t)
	m := New(c)
	waits := make(chan struct{}, 100)
	watch := m.builtin.tableWatch
	watch.waits = func() { waits <- struct{}{} }
	m = startedOf(t, c, m)
	connect(t, m, "a")
	<-waits
	watch.mu.Lock()
	must(t, watch.watch.Close())
	watch.mu.Unlock()
	<-waits
	other, err := nftables.New()
	must(t, err)
	other.DelTable(tableOf(m))
	must(t, other.Flush())
	<-waits
	if !m.builtin.fw.Exists() {
		t.Error("the table that another program deleted is not restored")
	}
}

// logText is a log that is read while it is written.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}
