package ingest

import (
	"hash"
	"io"
	"sync/atomic"
)

// ahead reads a stream in a goroutine of its own, a few buffers before the one who reads from
// it, and hashes in another what it has read: decompressing, hashing and writing files go on
// at the same time, and none of them copies for another.
type ahead struct {
	full, free chan *aheadBuffer
	toHash     chan *aheadBuffer
	stop       chan struct{}
	done       chan struct{} // closed when the reading goroutine has ended
	hashed     chan struct{} // closed when the hashing one has
	err        error         // what ended the stream; set before full is closed
	now        []byte        // of the buffer being read
	held       *aheadBuffer  // that buffer
}

// aheadBuffer goes back when it was both hashed and read.
type aheadBuffer struct {
	data  []byte
	users atomic.Int32
}

const (
	aheadBuffers = 4
	aheadBytes   = 256 << 10 // of each
)

// readAhead reads r before anybody wants it, and writes all of it to h, which is complete when
// close has returned after the end of the stream was read.
func readAhead(r io.Reader, h hash.Hash) *ahead {
	a := &ahead{
		// There is room for all: only waiting for free buffers blocks.
		full: make(chan *aheadBuffer, aheadBuffers), free: make(chan *aheadBuffer, aheadBuffers),
		toHash: make(chan *aheadBuffer, aheadBuffers),
		stop:   make(chan struct{}), done: make(chan struct{}), hashed: make(chan struct{}),
	}
	for range aheadBuffers {
		a.free <- &aheadBuffer{data: make([]byte, aheadBytes)}
	}
	go a.run(r)
	go a.hash(h)
	return a
}

func (a *ahead) run(r io.Reader) {
	defer close(a.done)
	defer close(a.full)
	defer close(a.toHash)
	for {
		select {
		case <-a.stop:
			return
		case b := <-a.free:
			n, err := io.ReadFull(r, b.data[:cap(b.data)])
			if n > 0 {
				b.data = b.data[:n]
				b.users.Store(2)
				a.toHash <- b
				a.full <- b
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

func (a *ahead) hash(h hash.Hash) {
	defer close(a.hashed)
	for b := range a.toHash {
		h.Write(b.data)
		a.release(b)
	}
}

func (a *ahead) release(b *aheadBuffer) {
	if b.users.Add(-1) == 0 {
		a.free <- b
	}
}

func (a *ahead) Read(p []byte) (int, error) {
	for len(a.now) == 0 {
		if a.held != nil {
			a.release(a.held)
			a.held = nil
		}
		b, ok := <-a.full
		if !ok {
			<-a.done
			return 0, a.err
		}
		a.now, a.held = b.data, b
	}
	n := copy(p, a.now)
	a.now = a.now[n:]
	return n, nil
}

// close ends the goroutines after the read and write that they are in, and waits for that.
// Nothing is read from a afterwards.
func (a *ahead) close() {
	close(a.stop)
	<-a.done
	<-a.hashed
}
