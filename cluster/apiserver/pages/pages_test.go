package pages

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/proxy"
)

func zipped(page string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, page)
	_ = w.Close()
	return b.Bytes()
}

func deflated(page string) []byte {
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, flate.BestSpeed)
	_, _ = io.WriteString(w, page)
	_ = w.Close()
	return b.Bytes()
}

const link, changed = `<a href="/x">x</a>`, `<a href="/proxy/x">x</a>`

// Links in short pages are changed as before. Long ones are passed on as they are.
func TestPages(t *testing.T) {
	long := strings.Repeat("a", pageLimit)
	for name, test := range map[string]struct {
		kind, encoding, body, want string
	}{
		"short":             {html, "", link, changed},
		"empty":             {html, "", "", ""},
		"charset":           {html + "; charset=utf-8", "", link, changed},
		"gzip":              {html, "gzip", string(zipped(link)), changed},
		"deflate":           {html, "deflate", string(deflated(link)), changed},
		"other encoding":    {html, "br", link, link},
		"no gzip":           {html, "gzip", link, link},
		"cut":               {html, "gzip", string(zipped(link)[:20]), string(zipped(link)[:20])},
		"text":              {"text/plain", "", link, link},
		"long":              {html + "; charset=utf-8", "", link + long, link + long},
		"well compressed":   {html, "gzip", string(zipped(link + long)), string(zipped(link + long))},
		"as long as it may": {html, "", link + long[:pageLimit-len(link)], changed + long[:pageLimit-len(link)]},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", test.kind)
				if test.encoding != "" {
					w.Header().Set("Content-Encoding", test.encoding)
				}
				_, _ = io.WriteString(w, test.body)
			}))
			defer server.Close()
			answer := httptest.NewRecorder()
			handler(t, server).ServeHTTP(answer, asking(test.encoding))
			if got := answer.Body.String(); answer.Code != http.StatusOK || got != test.want {
				t.Errorf("%d %.100q (%d), want %.100q (%d)", answer.Code, got, len(got), test.want, len(test.want))
			}
			if got := answer.Header().Get("Content-Type"); !strings.EqualFold(got, test.kind) {
				t.Errorf("Content-Type %q", got)
			}
		})
	}
}

func handler(t *testing.T, server *httptest.Server) *proxy.UpgradeAwareHandler {
	t.Helper()
	location, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	location.Path = "/page"
	return proxy.NewUpgradeAwareHandler(location, Limit(server.Client().Transport), true, false, nil)
}

func asking(encoding string) *http.Request {
	req := httptest.NewRequest(http.MethodGet, "/proxy/page", nil)
	if encoding != "" {
		req.Header.Set("Accept-Encoding", encoding) // else net/http decompresses
	}
	return req
}

// A page that does not end reaches the client while it is sent, and is not kept.
func TestEndlessPage(t *testing.T) {
	const attack = 16 * pageLimit // it has an end for the control only
	for name, limited := range map[string]bool{"limited": true, "control": false} {
		t.Run(name, func(t *testing.T) {
			ahead, arrived := make(chan int, 1), make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", html)
				sent := 0
				for block := strings.Repeat("a", 1<<16); sent < attack; sent += len(block) {
					select {
					case <-arrived:
						ahead <- sent
						return
					default:
					}
					_, _ = io.WriteString(w, block)
				}
				ahead <- sent
			}))
			defer server.Close()
			h := handler(t, server)
			if !limited {
				h.Transport = server.Client().Transport
			}
			front := httptest.NewServer(h)
			defer front.Close()
			resp, err := http.Get(front.URL + "/proxy/page")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			_, _ = resp.Body.Read(make([]byte, 1))
			close(arrived)
			_, _ = io.Copy(io.Discard, resp.Body)
			if sent := <-ahead; limited != (sent < attack) {
				t.Errorf("the first byte arrived when %d had been sent", sent)
			}
		})
	}
}
