package aggregate

import (
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/util/proxy"

	"github.com/coracle-project/coracle/cluster/apiserver/upgrade"
)

// upgrade passes on a request for an upgraded connection.
func (a *Aggregator) upgrade(w http.ResponseWriter, req *http.Request, location *url.URL, r *route) {
	handler := proxy.NewUpgradeAwareHandler(location, r.transport, false, true, failing{r, a.options.Log})
	upgrade.Limit(handler)
	handler.ServeHTTP(w, req)
}
