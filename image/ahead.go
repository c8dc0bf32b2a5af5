package image

import (
	"io"
)

// ahead reads a stream in a goroutine of its own, a few buffers before whoever reads from
// it: decompressing goes on on one core while another hashes and writes files.
type ahead struct {
	full, free chan []byte
	stop       chan struct{}
	done       chan struct{} // closed when the goroutine has ended
	err        error         // what ended the stream; set before full is closed
	now        []byte        // of the buffer being read
	held       []byte        // that buffer
}

const (
	aheadBuffers = 4
	aheadBytes   = 256 << 10 // of each
)

func readAhead(r io.Reader) *ahead {
	a := &ahead{
		full: make(chan []byte, aheadBuffers), free: make(chan []byte, aheadBuffers),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	for range aheadBuffers {
		a.free <- make([]byte, aheadBytes)
	}
	go a.run(r)
	return a
}

func (a *ahead) run(r io.Reader) {
	defer close(a.done)
	defer close(a.full)
	for {
		select {
		case <-a.stop:
			return
		case b := <-a.free:
			n, err := io.ReadFull(r, b[:cap(b)])
			if n > 0 {
				a.full <- b[:n] // there is room for all
			}
			if err == io.ErrUnexpectedEOF {
				err = io.EOF // a last buffer that is not full; r's own is wrapped
			}
			if err != nil {
				a.err = err
				return
			}
		}
	}
}

func (a *ahead) Read(p []byte) (int, error) {
	for len(a.now) == 0 {
		if a.held != nil {
			a.free <- a.held
			a.held = nil
		}
		b, ok := <-a.full
		if !ok {
			<-a.done
			return 0, a.err
		}
		a.now, a.held = b, b
	}
	n := copy(p, a.now)
	a.now = a.now[n:]
	return n, nil
}

// close ends the goroutine after the read that it is in, and waits for that. Nothing
// is read from a afterwards.
func (a *ahead) close() {
	close(a.stop)
	<-a.done
}
