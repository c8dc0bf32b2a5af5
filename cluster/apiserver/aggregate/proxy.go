package aggregate

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	endpointmetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	proxyutil "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	"k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/coracle-project/coracle/cluster/apiserver/pages"
)

// component is what the API server's metrics call the aggregator.
const component = "aggregator"

// pass has the server at the end of r answer a request. The request's user has been authenticated
// and authorized here; the server is told by headers who it is.
func (a *Aggregator) pass(w http.ResponseWriter, req *http.Request, r *route) {
	asked, ok := request.UserFrom(req.Context())
	if !ok {
		refuse(w, req, apierrors.NewInternalError(errors.New("the request has no user")))
		return
	}
	if !r.available {
		refuse(w, req, unavailable(r, "is not available; see its condition Available"))
		return
	}
	location, err := a.locate(r, req.URL.Path, req.URL.Query().Encode())
	if err != nil {
		a.options.Log.Debug("cannot reach the server of an API", "group", r.spec.Group, "version", r.spec.Version, "err", err)
		refuse(w, req, unavailable(r, "cannot be reached: "+err.Error()))
		return
	}
	// Discovery gets a short deadline, other requests those of this server.
	passed, cancel := proxyutil.NewRequestForProxy(location, req)
	defer cancel()
	flowcontrol.RequestDelegated(req.Context())
	if httpstream.IsUpgradeRequest(req) { // it takes a connection of its own, past the transport that sets the headers
		transport.SetAuthProxyHeaders(passed, asked.GetName(), asked.GetUID(), asked.GetGroups(), asked.GetExtra())
		a.upgrade(w, passed, location, r)
		return
	}
	as := transport.NewAuthProxyRoundTripper(asked.GetName(), asked.GetUID(), asked.GetGroups(), asked.GetExtra(), r.transport)
	handler := proxy.NewUpgradeAwareHandler(location, pages.Limit(as), true, false, failing{r, a.options.Log})
	handler.RejectForwardingRedirects = true // the client's next request would go where the server likes
	handler.ServeHTTP(w, passed)
}

// failing answers a request that its server did not.
type failing struct {
	*route
	log *slog.Logger
}

// Error implements proxy.ErrorResponder.
func (f failing) Error(w http.ResponseWriter, req *http.Request, err error) {
	if cause := context.Cause(req.Context()); cause != nil {
		err = cause
	}
	f.log.Debug("the server of an API does not answer", "group", f.spec.Group, "version", f.spec.Version, "err", err)
	refuse(w, req, unavailable(f.route, "does not answer: "+err.Error()))
}

func unavailable(r *route, why string) error {
	return apierrors.NewServiceUnavailable("the server of " + r.spec.Group + "/" + r.spec.Version + " (Service " +
		r.spec.Service.Namespace + "/" + r.spec.Service.Name + ") " + why)
}

func refuse(w http.ResponseWriter, req *http.Request, err error) {
	code := responsewriters.ErrorNegotiated(err, scheme.Codecs, schema.GroupVersion{}, w, req)
	if info, ok := request.RequestInfoFrom(req.Context()); ok {
		endpointmetrics.RecordRequestTermination(req, info, component, code)
	}
}
