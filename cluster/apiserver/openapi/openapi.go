// Package openapi serves the OpenAPI documents of an API server, v2 and v3, at next to no cost
// while no one reads them.
//
// The documents of the built-in groups are made when this package is generated, from the routes of
// a running server and upstream's generated definitions, and lie in the binary as gzip'ed JSON and
// protobuf: a client that accepts gzip gets the bytes as they are, any other has them unpacked
// while they are sent. Upstream keeps them as trees of Go values, which are most of an idle API
// server's memory.
//
// Custom resources come and go, so their documents are made when they are asked for, and kept
// gzip'ed until a definition changes. There is one document per group and version in v3, which
// leaves the built-in ones alone; v2 is one document for everything, and while there are custom
// resources a request for it costs a second or so after each change. kubectl asks for v3.
//
// What other API servers serve ([Others]) they describe themselves: the index has their v3
// documents without a hash, and a request for one goes to them. The v2 document does not have them.
//
// To generate: go test ./apiserver -run TestOpenAPIDocuments -update (a test fails when it is due).
package openapi

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apiextensionslisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/kube-openapi/pkg/handler3"
)

// Format is how a document is written.
type Format string

// The formats that every document is served in.
const (
	JSON     Format = "json"
	Protobuf Format = "pb"
)

const (
	root   = "/openapi/v3"
	rootV2 = "/openapi/v2"
	// V2 is the name of the v2 document; a v3 document's is the path of its group and version, such
	// as apis/apps/v1.
	V2 = "v2"
)

//go:embed all:documents
var documents embed.FS

// FileName returns the name, in the directory documents, of a document's file.
func FileName(name string, format Format) string {
	return strings.ReplaceAll(name, "/", "_") + "." + string(format) + ".gz"
}

// document is one document in one format.
type document struct {
	packed []byte // gzip
	hash   string
}

// Others are API servers that serve groups and versions in place of this one.
type Others interface {
	// Documents returns the names of the v3 documents that they serve.
	Documents() []string
	// Document returns what answers a request for a v3 document, if they serve it.
	Document(name string) (http.Handler, bool)
}

// handler serves documents: the built-in ones by name, custom resources' when asked.
type handler struct {
	hashes map[string]string // of the built-in documents' JSON, by name
	custom *custom
	others Others
	log    *slog.Logger
}

// Install adds the paths of the documents to m. Custom resources are those in crds.
func Install(m *mux.PathRecorderMux, crds apiextensionslisters.CustomResourceDefinitionLister, others Others, log *slog.Logger) error {
	h := &handler{custom: &custom{crds: crds}, others: others, log: log}
	index, err := documents.ReadFile("documents/index.json")
	if err == nil {
		err = json.Unmarshal(index, &h.hashes)
	}
	if err != nil {
		return fmt.Errorf("OpenAPI documents in the binary: %w", err)
	}
	m.Handle(rootV2, http.HandlerFunc(h.serveV2))
	m.Handle(root, http.HandlerFunc(h.serveIndex))
	m.HandlePrefix(root+"/", http.HandlerFunc(h.serveV3))
	return nil
}

// builtin returns a built-in document.
func (h *handler) builtin(name string, format Format) (document, bool) {
	hash, ok := h.hashes[name]
	if !ok {
		return document{}, false
	}
	packed, err := documents.ReadFile("documents/" + FileName(name, format))
	if err != nil {
		return document{}, false
	}
	return document{packed, hash}, true
}

// serveIndex answers which v3 documents there are.
func (h *handler) serveIndex(w http.ResponseWriter, r *http.Request) {
	all := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	add := func(name, hash string) {
		all.Paths[name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: location(name, hash)}
	}
	for name, hash := range h.custom.hashes() {
		add(name, hash)
	}
	for name, hash := range h.hashes {
		if name != V2 {
			add(name, hash)
		}
	}
	for _, name := range h.others.Documents() {
		all.Paths[name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: root + "/" + name}
	}
	data, err := json.Marshal(all)
	if err != nil {
		h.fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Etag", strconv.Quote(hashOf(data)))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// location is the URL of a v3 document that has this hash; it can be cached forever.
func location(name, hash string) string {
	return root + "/" + name + "?" + url.Values{"hash": {hash}}.Encode()
}

// serveV3 answers one v3 document.
func (h *handler) serveV3(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, root+"/")
	if other, ok := h.others.Document(name); ok {
		other.ServeHTTP(w, r)
		return
	}
	format, contentType := negotiate(r, "v3")
	if format == "" {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	d, ok := h.builtin(name, format)
	if !ok {
		var err error
		if d, ok, err = h.custom.v3(name, format); err != nil {
			h.fail(w, err)
			return
		}
	}
	if !ok {
		http.NotFound(w, r)
		return
	}
	if wanted := r.URL.Query().Get("hash"); wanted != "" {
		if wanted != d.hash {
			http.Redirect(w, r, location(name, d.hash), http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).Format(time.RFC1123))
	}
	h.send(d, w, r, contentType)
}

// serveV2 answers the v2 document.
func (h *handler) serveV2(w http.ResponseWriter, r *http.Request) {
	format, contentType := negotiate(r, "v2")
	if format == "" {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	d, ok := h.builtin(V2, format)
	if !ok {
		http.NotFound(w, r)
		return
	}
	whole, err := h.custom.v2(h, d, format)
	if err != nil {
		h.fail(w, err)
		return
	}
	h.send(whole, w, r, contentType)
}

// send sends a document, gzip'ed if the client takes that.
func (h *handler) send(d document, w http.ResponseWriter, r *http.Request, contentType string) {
	header := w.Header()
	header.Set("Content-Type", contentType)
	header.Set("Etag", strconv.Quote(d.hash))
	header.Add("Vary", "Accept, Accept-Encoding")
	if r.Header.Get("If-None-Match") == strconv.Quote(d.hash) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		header.Set("Content-Encoding", "gzip")
		header.Set("Content-Length", strconv.Itoa(len(d.packed)))
		_, _ = w.Write(d.packed)
		return
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(d.packed))
	if err != nil {
		h.fail(w, err)
		return
	}
	_, _ = io.Copy(w, unpacked) // the client may have gone
}

func (h *handler) fail(w http.ResponseWriter, err error) {
	h.log.Error("OpenAPI document", "err", err)
	http.Error(w, "the OpenAPI document cannot be made", http.StatusInternalServerError)
}
