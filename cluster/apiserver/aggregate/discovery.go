package aggregate

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/transport"
)

// documentLimit is how many bytes may be in what a server says it serves. Kubernetes' own is some
// 200 kB. Resources of a few bytes each become a hundred times as much memory.
const documentLimit = 1 << 20

// asking returns what upstream's merger asks for what a server serves, of /apis or of one group and
// version. It is asked whether the server counts as available or not. An answer that is too long is
// none: the whole would be kept in memory here. Neither is one that is not JSON: the merger would
// take YAML as well, in which aliases make much of little.
func (a *Aggregator) asking(r *route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := a.ask(w, req, r); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
}

func (a *Aggregator) ask(w http.ResponseWriter, req *http.Request, r *route) error {
	location, err := a.locate(r, req.URL.Path, "")
	if err != nil {
		return err
	}
	out, err := http.NewRequestWithContext(req.Context(), http.MethodGet, location.String(), nil)
	if err != nil {
		return err
	}
	for _, name := range []string{"Accept", "If-None-Match"} {
		if value := req.Header.Get(name); value != "" {
			out.Header.Set(name, value)
		}
	}
	if asked, ok := request.UserFrom(req.Context()); ok {
		transport.SetAuthProxyHeaders(out, asked.GetName(), "", asked.GetGroups(), nil)
	}
	resp, err := r.transport.RoundTrip(out)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, documentLimit+1))
	if err != nil {
		return err
	}
	if len(body) > documentLimit {
		return fmt.Errorf("the server of %s/%s describes what it serves in more than %d bytes", r.spec.Group, r.spec.Version, documentLimit)
	}
	if resp.StatusCode == http.StatusOK && !bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) {
		// Not 503, after which the merger would not ask for the older kind of document.
		http.Error(w, fmt.Sprintf("the server of %s/%s describes what it serves in something else than JSON", r.spec.Group, r.spec.Version),
			http.StatusBadGateway)
		return nil
	}
	for _, name := range []string{"Content-Type", "Etag"} {
		if value := resp.Header.Get(name); value != "" {
			w.Header().Set(name, value)
		}
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(body) // to memory
	return nil
}
