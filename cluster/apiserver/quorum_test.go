package apiserver

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pipeListener is a listener on pipes.
type pipeListener struct {
	net.Listener
	conns chan net.Conn
}

func (p pipeListener) Accept() (net.Conn, error) { return <-p.conns, nil }

func TestClientsAreCutOffWithoutAQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipes := pipeListener{conns: make(chan net.Conn, 1)}
		c := newCutOff(pipes, slog.New(slog.DiscardHandler))
		connect := func() (client net.Conn, ended <-chan error) {
			client, server := net.Pipe()
			pipes.conns <- server
			if _, err := c.Accept(); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := client.Read(make([]byte, 1))
				done <- err
			}()
			return client, done
		}
		var leads atomic.Bool
		leads.Store(true)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go c.run(ctx, leads.Load)

		one, ended := connect()
		defer one.Close()
		time.Sleep(time.Minute + leaderEvery/2)
		leads.Store(false) // an election
		time.Sleep(2 * time.Second)
		leads.Store(true)
		time.Sleep(time.Minute)
		select {
		case err := <-ended:
			t.Fatalf("the connection ended in an election: %v", err)
		default:
		}
		leads.Store(false)
		time.Sleep(2 * leaderless)
		if err := <-ended; err != io.EOF {
			t.Errorf("the connection ended with %v", err)
		}
		// One that is made meanwhile, to ask why, stays; it ends when the quorum is lost again.
		two, ended := connect()
		defer two.Close()
		time.Sleep(time.Minute)
		select {
		case err := <-ended:
			t.Fatalf("the connection ended without a quorum: %v", err)
		default:
		}
		if n := c.end(); n != 1 {
			t.Errorf("%d connections were open", n)
		}
		<-ended
	})
}
