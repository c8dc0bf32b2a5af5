// Package pages limits what the API server keeps of HTML pages that come through the proxy of pods,
// Services, nodes and aggregated servers.
//
// Upstream changes the links in such a page, and keeps the whole page for that, however long it is
// and however well it was compressed. Here only pages of up to pageLimit get there. Others are
// passed on as they come.
package pages

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
)

// pageLimit is how long a page may be, decompressed, for its links to be changed.
const pageLimit = 4 << 20

const html = "text/html"

// Limit returns a transport for a proxy.UpgradeAwareHandler that wraps its transport.
func Limit(through http.RoundTripper) http.RoundTripper { return limiter{through} }

type limiter struct{ through http.RoundTripper }

// WrappedRoundTripper is for those that look for the transport.
func (l limiter) WrappedRoundTripper() http.RoundTripper { return l.through }

// RoundTrip implements http.RoundTripper.
func (l limiter) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.through.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	kind, parameters, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	if strings.TrimSpace(kind) != html { // as upstream compares
		return resp, nil
	}
	var read bytes.Buffer
	page, ok := whole(io.TeeReader(resp.Body, &read), resp.Header.Get("Content-Encoding"))
	if ok {
		resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(page))
		resp.Header.Del("Content-Encoding")
		resp.Header.Del("Content-Length")
		resp.ContentLength = int64(len(page))
		return resp, nil
	}
	resp.Body = passing{io.MultiReader(&read, resp.Body), resp.Body}
	// Upstream does not know it in capitals, and all others do.
	kind = strings.ToUpper(html)
	if parameters != "" {
		kind += ";" + parameters
	}
	resp.Header.Set("Content-Type", kind)
	return resp, nil
}

// passing is a body of which some was read before.
type passing struct {
	io.Reader
	io.Closer
}

// whole returns a page if it can be decompressed and is no longer than pageLimit.
func whole(body io.Reader, encoding string) ([]byte, bool) {
	body = io.LimitReader(body, pageLimit+pageLimit/8) // what cannot be compressed gets longer
	switch encoding {
	case "":
	case "gzip":
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return nil, false
		}
		body = unzipped
	case "deflate":
		body = flate.NewReader(body)
	default:
		return nil, false
	}
	page, err := io.ReadAll(io.LimitReader(body, pageLimit+1))
	return page, err == nil && len(page) <= pageLimit
}
