package program

import (
	"os"
	"sync"
)

// Starting is a zygote that is started next to what its caller goes on with. A nil one is none.
type Starting struct {
	mu      sync.Mutex
	done    chan struct{} // nil after Take
	sock    *os.File
	process *Process
	err     error
}

// Begin has a zygote started. A program that starts one has to Take it, if only to end it.
func Begin() *Starting {
	done := make(chan struct{})
	s := &Starting{done: done}
	go func() {
		defer close(done)
		s.sock, s.process, s.err = Start()
	}()
	return s
}

// Take returns the zygote, as Start would, once. There is none if sock and err are nil.
func (s *Starting) Take() (sock *os.File, process *Process, err error) {
	if s == nil {
		return nil, nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done == nil {
		return nil, nil, nil
	}
	<-s.done
	s.done = nil
	return s.sock, s.process, s.err
}

// Discard ends the zygote, if it was not taken.
func (s *Starting) Discard() {
	sock, process, err := s.Take()
	if sock == nil || err != nil {
		return
	}
	_ = sock.Close()
	_ = process.Kill()
	_ = process.Wait()
}
