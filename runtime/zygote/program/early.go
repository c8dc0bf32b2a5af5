package program

import (
	"os"
	"sync"
)

// begun is what Begin has started.
var begun struct {
	mu      sync.Mutex
	done    chan struct{} // nil before Begin and after Take
	sock    *os.File
	process *Process
	err     error
}

// Begin has a zygote started next to what its caller goes on with. A program that starts one has
// to Take it, if only to end it.
func Begin() {
	begun.mu.Lock()
	defer begun.mu.Unlock()
	done := make(chan struct{})
	begun.done = done
	go func() {
		defer close(done)
		begun.sock, begun.process, begun.err = Start()
	}()
}

// Take returns the zygote that Begin has started, as Start would, once. There is none if sock
// and err are nil.
func Take() (sock *os.File, process *Process, err error) {
	begun.mu.Lock()
	defer begun.mu.Unlock()
	if begun.done == nil {
		return nil, nil, nil
	}
	<-begun.done
	begun.done = nil
	return begun.sock, begun.process, begun.err
}
