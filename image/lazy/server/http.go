package server

import (
	"encoding/json"
	"net/http"
	"os"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/lazy"
)

// maxBody bounds a request: a layer with all registries' settings is a few kilobytes.
const maxBody = 4 << 20

// Handler serves what lazy.Client asks.
func (s *Server) Handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /layers", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, lazy.Status{PID: os.Getpid(), Layers: s.Layers()})
	})
	m.HandleFunc("PUT /layers/{diffID}", func(w http.ResponseWriter, r *http.Request) {
		var l lazy.Layer
		if decode(w, r, &l) {
			answer(w, lazy.FailureOf(s.Show(r.Context(), l)))
		}
	})
	m.HandleFunc("GET /layers/{diffID}/whole", func(w http.ResponseWriter, r *http.Request) {
		answer(w, lazy.FailureOf(s.Await(r.Context(), digest.Digest(r.PathValue("diffID")))))
	})
	m.HandleFunc("PUT /layers/{diffID}/unpacked", func(w http.ResponseWriter, r *http.Request) {
		var dir string
		if decode(w, r, &dir) {
			answer(w, lazy.FailureOf(s.Unpacked(digest.Digest(r.PathValue("diffID")), dir)))
		}
	})
	return m
}

func decode(w http.ResponseWriter, r *http.Request, to any) bool {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	err := d.Decode(to)
	if err != nil {
		answer(w, lazy.FailureOf(err))
	}
	return err == nil
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client sees an answer that breaks off
}
