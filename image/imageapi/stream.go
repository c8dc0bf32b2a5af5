package imageapi

import (
	"bufio"
	"io"

	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// chunkSize is how many bytes of a stream one message has.
const chunkSize = 256 << 10

// chunks makes a writer of a stream of messages. The caller flushes it at the end.
func chunks(send func(*imagesv1.Chunk) error) *bufio.Writer {
	return bufio.NewWriterSize(chunkWriter(send), chunkSize)
}

type chunkWriter func(*imagesv1.Chunk) error

func (w chunkWriter) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		part := p[n:min(n+chunkSize, len(p))]
		if err := w(&imagesv1.Chunk{Data: part}); err != nil {
			return n, err
		}
		n += len(part)
	}
	return len(p), nil
}

// pieces makes a reader of a stream of messages: the data of the first message, then
// what next returns, until its io.EOF.
type pieces struct {
	left []byte
	next func() ([]byte, error)
}

func (r *pieces) Read(p []byte) (int, error) {
	for len(r.left) == 0 {
		data, err := r.next()
		if err != nil {
			return 0, err
		}
		r.left = data
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

var _ io.Reader = (*pieces)(nil)
