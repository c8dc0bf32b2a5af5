package apiserver

import (
	"net/http"
	"sync/atomic"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// tellingOfCrowds calls crowded whenever a request arrives while another one is being answered.
// Watches and streams do not count.
func tellingOfCrowds(h http.Handler, crowded func(), longRunning request.LongRunningRequestCheck) http.Handler {
	if crowded == nil {
		return h
	}
	var underWay atomic.Int32
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, known := request.RequestInfoFrom(r.Context()); !known || !longRunning(r, info) {
			if underWay.Add(1) > 1 {
				crowded()
			}
			defer underWay.Add(-1)
		}
		h.ServeHTTP(w, r)
	})
}
