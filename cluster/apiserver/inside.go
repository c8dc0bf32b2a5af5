package apiserver

import (
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	apifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/warning"
)

// insideChain answers the requests of clients in this process by a part of upstream's filters, in
// upstream's order: those that find out who asks for what, decide about it, record it, and limit
// its time. Not among them are those for clients that may be hostile, slow, or browsers: priority
// and fairness, the goroutine that lets a request end before its handler does, and headers for
// caches and HTTPS. Upstream's recorder of warnings needs that goroutine, too: handlers may warn
// after their request has ended.
//
// These requests take the complete chain, all: those for anything but a resource, long-running
// ones, those that act as another user, and questions about who someone is and what they may do,
// which the kubelet asks about each client of its own.
func insideChain(handler, all http.Handler, c *genericapiserver.Config) http.Handler {
	handler = apifilters.WithAuthorization(handler, c.Authorization.Authorizer, c.Serializer)
	handler = apifilters.WithAudit(handler, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc)
	failed := apifilters.WithFailedAuthenticationAudit(apifilters.Unauthorized(c.Serializer), c.AuditBackend, c.AuditPolicyRuleEvaluator)
	handler = apifilters.WithAuthentication(handler, c.Authentication.Authenticator, failed, c.Authentication.APIAudiences,
		c.Authentication.RequestHeaderConfig)
	handler = apifilters.WithRequestDeadline(handler, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc, c.Serializer,
		c.RequestTimeout)
	handler = genericfilters.WithWaitGroup(handler, c.LongRunningFunc, c.NonLongRunningRequestWaitGroup)
	handler = apifilters.WithLatencyTrackers(handler)
	handler = genericfilters.WithPanicRecovery(apifilters.WithRequestReceivedTimestamp(handler), c.RequestInfoResolver)
	short := withInsideWarnings(apifilters.WithAuditInit(handler)) // the others wrap the ResponseWriter
	return apifilters.WithRequestInfo(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || c.LongRunningFunc(r, info) || impersonates(r.Header) ||
			info.APIGroup == authenticationv1.GroupName || info.APIGroup == authorizationv1.GroupName {
			all.ServeHTTP(w, r)
			return
		}
		short.ServeHTTP(w, r)
	}), c.RequestInfoResolver)
}

// impersonates says whether a request has any header of impersonation, valid or not.
func impersonates(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// withInsideWarnings has warnings recorded by the ResponseWriter of requests inside this process.
func withInsideWarnings(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to, ok := w.(interface{ AddWarning(value string) }); ok {
			r = r.WithContext(warning.WithWarningRecorder(r.Context(), insideWarnings{to.AddWarning}))
		}
		next.ServeHTTP(w, r)
	})
}

type insideWarnings struct{ add func(value string) }

// AddWarning implements [warning.Recorder].
func (w insideWarnings) AddWarning(agent, text string) {
	if header, err := utilnet.NewWarningHeader(warningCode, agent, text); text != "" && err == nil {
		w.add(header)
	}
}

// warningCode is that of all warnings (RFC 7234, section 5.5.7).
const warningCode = 299
