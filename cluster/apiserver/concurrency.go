package apiserver

import (
	"net/http"
	"sync/atomic"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// reportConcurrency calls concurrent for each request that arrives while another is being answered.
// Watches and streams do not count.
func reportConcurrency(h http.Handler, concurrent func(), longRunning request.LongRunningRequestCheck) http.Handler {
	if concurrent == nil {
		return h
	}
	var underWay atomic.Int32
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, known := request.RequestInfoFrom(r.Context()); !known || !longRunning(r, info) {
			if underWay.Add(1) > 1 {
				concurrent()
			}
			defer underWay.Add(-1)
		}
		h.ServeHTTP(w, r)
	})
}
