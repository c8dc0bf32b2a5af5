package lc_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

func TestPhases(t *testing.T) {
	bundle := runtimetest.Bundle(t)
	e, _ := lc.New(lc.Config{StateDir: "/run/coracle-bench"})
	ctx := t.Context()
	for _, pause := range []time.Duration{0, 60 * time.Millisecond, 500 * time.Millisecond} {
		var ph [5][]time.Duration
		for n := range 60 {
			time.Sleep(pause)
			id := fmt.Sprintf("ph-%d", n)
			t0 := time.Now()
			c, err := e.Create(ctx, id, runtimetest.Spec(id, "/bin/true"), runtime.CreateOptions{Bundle: bundle})
			if err != nil {
				t.Fatal(err)
			}
			t1 := time.Now()
			pid := c.Pid()
			if err := c.Start(ctx); err != nil {
				t.Fatal(err)
			}
			t2 := time.Now()
			reap(t, pid)
			t3 := time.Now()
			if err := c.Delete(ctx, runtime.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			t4 := time.Now()
			for i, d := range []time.Duration{t1.Sub(t0), t2.Sub(t1), t3.Sub(t2), t4.Sub(t3), t4.Sub(t0)} {
				ph[i] = append(ph[i], d)
			}
		}
		for i, n := range []string{"create", "start", "exit", "delete", "total"} {
			slices.Sort(ph[i])
			t.Logf("pause %v %s %v", pause, n, ph[i][len(ph[i])/2])
		}
	}
}
