package aggregate

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/util/proxy"

	"github.com/coracle-project/coracle/cluster/apiserver/upgrade"
)

// upgradeLimit is how long a server may take to answer a request for an upgraded connection.
const upgradeLimit = 30 * time.Second

var errNoUpgrade = errors.New("no answer to the request for an upgraded connection")

// upgrade passes on a request for an upgraded connection.
//
// Upstream's handler waits for the answer without a limit, also when the client has gone. Here the
// connection to the server is closed when the client goes, and after upgradeLimit, unless the
// server has answered. From then on the two connections end together.
func (a *Aggregator) upgrade(w http.ResponseWriter, req *http.Request, location *url.URL, r *route) {
	ctx, cancel := context.WithTimeoutCause(req.Context(), a.upgradeLimit, errNoUpgrade)
	defer cancel()
	waiting := &upgrading{ResponseWriter: w, ctx: ctx, dial: r.transport.DialContext}
	defer waiting.answered()
	dialing := &http.Transport{TLSClientConfig: r.transport.TLSClientConfig, DialContext: waiting.connect} // the handler takes no more of it
	handler := proxy.NewUpgradeAwareHandler(location, dialing, false, true, failing{r, a.options.Log})
	upgrade.Limit(handler)
	handler.ServeHTTP(waiting, req.WithContext(ctx))
}

// upgrading is a request for an upgraded connection. The connection to the server is closed when
// ctx ends, until the client's connection is taken over.
type upgrading struct {
	http.ResponseWriter // to the client
	ctx                 context.Context
	dial                func(ctx context.Context, network, address string) (net.Conn, error)
	stop                func() bool // keeps the connection open when ctx ends; nil before there is one
}

func (u *upgrading) connect(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := u.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	u.stop = context.AfterFunc(u.ctx, func() { _ = conn.Close() })
	return conn, nil
}

func (u *upgrading) answered() {
	if u.stop != nil {
		u.stop()
	}
}

// Hijack implements http.Hijacker. The handler calls it when the server has answered.
func (u *upgrading) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err == nil {
		u.answered()
	}
	return conn, buffered, err
}

// Unwrap is for http.ResponseController.
func (u *upgrading) Unwrap() http.ResponseWriter { return u.ResponseWriter }
