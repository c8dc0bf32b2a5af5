package apiserver

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	restful "github.com/emicklei/go-restful/v3"

	"github.com/coracle-project/coracle/cluster/apiserver/openapi"
)

// TestOpenAPIDocuments compares the documents in the binary with those that the server's routes and
// types amount to, or writes them with -update.
func TestOpenAPIDocuments(t *testing.T) {
	for _, restore := range documented {
		restore()
	}
	var services []*restful.WebService
	for _, container := range built.containers {
		defer forgetDocumentation(container)
		services = append(services, container.RegisteredWebServices()...)
	}
	// Both servers answer some paths; the one in front is what clients see.
	seen := map[string]bool{}
	services = slices.DeleteFunc(services, func(s *restful.WebService) bool {
		dup := seen[s.RootPath()]
		seen[s.RootPath()] = true
		return dup
	})
	files, err := openapi.Generate(services, built.config.OpenAPIConfig, built.config.OpenAPIV3Config)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join("openapi", "documents")
	if *update {
		old, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, path := range old {
			_ = os.Remove(path)
		}
		for name, data := range files {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	have, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range have {
		have[i] = filepath.Base(have[i])
	}
	if want := slices.Sorted(maps.Keys(files)); !slices.Equal(have, want) {
		t.Fatalf("the documents are %v, should be %v; run the test with -update", have, want)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		// Protobuf is made from the JSON, whose maps it writes in any order.
		if !strings.HasSuffix(name, ".pb.gz") && !bytes.Equal(got, want) {
			t.Errorf("%s is out of date; run the test with -update", name)
		}
	}
}

// keepDocumentation returns what restores the documentation of a container's routes.
func keepDocumentation(container *restful.Container) (restore []func()) {
	for _, service := range container.RegisteredWebServices() {
		for _, route := range service.Routes() {
			parameters, answers := slices.Clone(route.ParameterDocs), maps.Clone(route.ResponseErrors)
			restore = append(restore, func() {
				copy(route.ParameterDocs, parameters)
				maps.Copy(route.ResponseErrors, answers)
			})
		}
	}
	return restore
}
