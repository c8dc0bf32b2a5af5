package apiserver

import (
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// bodyLimit is how long the body of a request may take to arrive. A body may have 3 MB, and
// clients' bodies are mostly below 10 kB. A slower sender holds a seat of its priority level.
const bodyLimit = 20 * time.Second

// withBodyDeadline ends requests whose body does not arrive in time. Requests that last as long as
// their client wants (proxy, exec) are not limited; requests within the process have no connection.
func withBodyDeadline(next http.Handler, limit time.Duration, resolve request.RequestInfoResolver,
	lasting request.LongRunningRequestCheck,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		if info, err := resolve.NewRequestInfo(r); err != nil || lasting(r, info) {
			next.ServeHTTP(w, r)
			return
		}
		connection := http.NewResponseController(w)
		if connection.SetReadDeadline(time.Now().Add(limit)) != nil { // it cannot: within the process
			next.ServeHTTP(w, r)
			return
		}
		body := &timedBody{ReadCloser: r.Body, connection: connection}
		defer body.leave()
		r.Body = body
		next.ServeHTTP(w, r)
	})
}

// timedBody removes the deadline of its connection when all of it was read. From then on the
// connection may be silent for as long as the request takes; with HTTP/1 the deadline would end it.
type timedBody struct {
	io.ReadCloser
	mu         sync.Mutex
	connection *http.ResponseController // nil when it is not to be touched any more
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF { //nolint:errorlint // readers return it as it is
		b.arrived()
	}
	return n, err
}

func (b *timedBody) arrived() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.connection != nil {
		_ = b.connection.SetReadDeadline(time.Time{})
		b.connection = nil
	}
}

// leave is for the end of the request: the connection is another's then. A request that took too
// long is answered while its handler goes on, which may read the rest of the body.
func (b *timedBody) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connection = nil
}
