package openapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	restful "github.com/emicklei/go-restful/v3"
	handlerv2 "k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"

	builderv2 "k8s.io/kube-openapi/pkg/builder"
	builderv3 "k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/spec3"
)

// Generate makes the files of the directory documents from the routes of a server.
func Generate(services []*restful.WebService, v2 *common.Config, v3 *common.OpenAPIV3Config) (map[string][]byte, error) {
	files := map[string][]byte{}
	hashes := map[string]string{}
	add := func(name string, data []byte, encode func([]byte) ([]byte, error)) error {
		encoded, err := encode(data)
		if err != nil {
			return fmt.Errorf("OpenAPI document %s: %w", name, err)
		}
		hashes[name] = hashOf(data)
		files[FileName(name, JSON)], files[FileName(name, Protobuf)] = Pack(data), Pack(encoded)
		return nil
	}

	whole, err := builderv2.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(services), v2)
	if err != nil {
		return nil, fmt.Errorf("OpenAPI v2: %w", err)
	}
	whole.Definitions = handlerv2.PruneDefaults(whole.Definitions)
	data, err := json.Marshal(whole)
	if err != nil {
		return nil, err
	}
	if err := add(V2, data, handlerv2.ToProtoBinary); err != nil {
		return nil, err
	}
	for _, service := range services {
		name := strings.TrimPrefix(service.RootPath(), "/")
		document, err := builderv3.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices([]*restful.WebService{service}), v3)
		if err != nil {
			return nil, fmt.Errorf("OpenAPI v3 of %s: %w", name, err)
		}
		keepOwnKinds(document, name)
		if data, err = json.Marshal(document); err != nil {
			return nil, err
		}
		if err := add(name, data, handler3.ToV3ProtoBinary); err != nil {
			return nil, err
		}
	}
	index := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(hashes)) {
		index[name] = hashes[name]
	}
	files["index.json"], err = json.MarshalIndent(index, "", "\t")
	return files, err
}

// keepOwnKinds leaves, of the kinds that every group has (upstream registers them everywhere),
// those of the document's own group and of the core group.
func keepOwnKinds(document *spec3.OpenAPI, name string) {
	const kinds = "x-kubernetes-group-version-kind"
	parts := strings.Split(name, "/")
	if document.Components == nil || len(parts) < 2 {
		return
	}
	group, version := "", parts[len(parts)-1]
	if len(parts) == 3 {
		group = parts[1]
	}
	for _, schema := range document.Components.Schemas {
		all, ok := schema.Extensions[kinds].([]any)
		if !ok || len(all) < 2 {
			continue
		}
		own := slices.DeleteFunc(slices.Clone(all), func(entry any) bool {
			gvk, _ := entry.(map[string]any)
			if kind := gvk["kind"]; kind != "WatchEvent" && kind != "DeleteOptions" {
				return false
			}
			return !(gvk["group"] == group && gvk["version"] == version) && !(gvk["group"] == "" && gvk["version"] == "v1")
		})
		schema.Extensions[kinds] = own
	}
}
