package health

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"
)

func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		began := time.Now()
		proxy, dns := b.Add("proxy"), b.Add("dns")
		step := func() time.Time { time.Sleep(time.Minute); return time.Now() }
		want := func(i int, want State) {
			t.Helper()
			if got := b.States()[i]; !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
		want(0, State{Component: "proxy", Since: began, Message: "it has not started yet"})
		works := step()
		proxy.Works("a")
		step()
		proxy.Works("b", "w")
		want(0, State{Component: "proxy", Healthy: true, Since: works, Message: "b", Warnings: []string{"w"}})
		proxy.Works("b")
		noted := step()
		proxy.Notes("repaired")
		want(0, State{Component: "proxy", Healthy: true, Since: works, Message: "b", LastError: "repaired", LastErrorAt: noted})
		failed := step()
		proxy.Fails(errors.New("first"))
		again := step()
		proxy.Fails(errors.New("second"))
		want(0, State{Component: "proxy", Since: failed, Message: "second", LastError: "second", LastErrorAt: again})
		back := step()
		proxy.Works("c")
		want(0, State{Component: "proxy", Healthy: true, Since: back, Message: "c", LastError: "second", LastErrorAt: again})
		want(1, State{Component: "dns", Since: began, Message: "it has not started yet"})
		dns.Fails(errors.New("x"))
		want(1, State{Component: "dns", Since: began, Message: "x", LastError: "x", LastErrorAt: back})
	})
	var alone *Part
	alone.Works("x")
	alone.Fails(errors.New("x"))
	alone.Notes("x")
}

// Wait ends when the last part has said that it works or fails. What went wrong before that says
// neither.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		b.Wait(t.Context()) // there are no parts
		first, second := b.Add("first"), b.Add("second")
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		b.Wait(short)
		if short.Err() == nil {
			t.Error("Wait has not waited for its context")
		}
		done := make(chan struct{})
		go func() { defer close(done); b.Wait(t.Context()) }()
		first.Works("")
		second.Notes("repaired")
		synctest.Wait()
		select {
		case <-done:
			t.Error("Wait has not waited for the second part")
		default:
		}
		second.Fails(errors.New("x"))
		<-done
	})
}

func TestCount(t *testing.T) {
	for n, want := range []string{"0 other nodes", "1 other node", "2 other nodes"} {
		if got := Count(n, "other node"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
