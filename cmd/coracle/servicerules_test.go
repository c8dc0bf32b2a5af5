package main

import (
	"runtime"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// down removes the rules of its own cluster and no others.
func TestRulesOfServicesAreRemoved(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends, and the namespace with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("it must be root: %v", err)
			return
		}
		c, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		for _, name := range []string{"coracle-services-6443", "coracle-services-7443"} {
			c.AddTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
		}
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
		for range 2 { // the second time there is nothing to do
			if err := removeServiceRules(6443); err != nil {
				t.Error(err)
			}
		}
		left, err := c.ListTables()
		if err != nil || len(left) != 1 || left[0].Name != "coracle-services-7443" {
			t.Errorf("left are %v, %v", left, err)
		}
	}()
	<-done
}
