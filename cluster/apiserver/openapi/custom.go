package openapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionslisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/labels"
	handlerv2 "k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// custom makes the documents of custom resources.
type custom struct {
	crds apiextensionslisters.CustomResourceDefinitionLister

	mu   sync.Mutex
	made map[string]document // by name and format, each with the hash of what it was made from
}

// served returns the definitions whose resources are served, in a fixed order.
func (c *custom) served() []*apiextensionsv1.CustomResourceDefinition {
	all, err := c.crds.List(labels.Everything())
	if err != nil { // listers over a cache do not fail
		return nil
	}
	all = slices.DeleteFunc(slices.Clone(all), func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
	})
	slices.SortFunc(all, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// versions returns the definitions behind each v3 document.
func (c *custom) versions() map[string][]*apiextensionsv1.CustomResourceDefinition {
	byName := map[string][]*apiextensionsv1.CustomResourceDefinition{}
	for _, crd := range c.served() {
		for _, v := range crd.Spec.Versions {
			if v.Served {
				name := "apis/" + crd.Spec.Group + "/" + v.Name
				byName[name] = append(byName[name], crd)
			}
		}
	}
	return byName
}

// hashes returns the hash of each v3 document. It is that of the definitions it is made from, so
// that the document need not be made to know it.
func (c *custom) hashes() map[string]string {
	hashes := map[string]string{}
	for name, crds := range c.versions() {
		hashes[name] = hashOfDefinitions(crds)
	}
	return hashes
}

func hashOfDefinitions(crds []*apiextensionsv1.CustomResourceDefinition) string {
	var from strings.Builder
	for _, crd := range crds {
		fmt.Fprintf(&from, "%s %s %d %v\n", crd.Name, crd.UID, crd.Generation, crd.Status.AcceptedNames)
	}
	return hashOf([]byte(from.String()))
}

func hashOf(data []byte) string { return fmt.Sprintf("%X", sha512.Sum512(data)) }

// v3 returns the v3 document called name, if a definition serves that group and version.
func (c *custom) v3(name string, format Format) (document, bool, error) {
	crds := c.versions()[name]
	if len(crds) == 0 {
		return document{}, false, nil
	}
	version := name[strings.LastIndex(name, "/")+1:]
	d, err := c.make(name, format, hashOfDefinitions(crds), func() ([]byte, error) {
		var specs []*spec3.OpenAPI
		for _, crd := range crds {
			s, err := builder.BuildOpenAPIV3(crd, version, builder.Options{IncludeSelectableFields: true})
			if err != nil {
				return nil, fmt.Errorf("OpenAPI v3 of %s: %w", crd.Name, err)
			}
			specs = append(specs, s)
		}
		whole, err := builder.MergeSpecsV3(specs...)
		if err != nil {
			return nil, fmt.Errorf("OpenAPI v3 of %s: %w", name, err)
		}
		return json.Marshal(whole)
	}, handler3.ToV3ProtoBinary)
	return d, true, err
}

// v2 returns the v2 document: the built-in one, with the custom resources if there are any.
func (c *custom) v2(h *handler, builtin document, format Format) (document, error) {
	crds := c.served()
	if len(crds) == 0 {
		return builtin, nil
	}
	return c.make(V2, format, hashOf([]byte(builtin.hash+hashOfDefinitions(crds))), func() ([]byte, error) {
		static, _ := h.builtin(V2, JSON)
		data, err := static.unpack()
		if err != nil {
			return nil, err
		}
		whole := &spec.Swagger{}
		if err := whole.UnmarshalJSON(data); err != nil {
			return nil, fmt.Errorf("built-in OpenAPI v2: %w", err)
		}
		var specs []*spec.Swagger
		for _, crd := range crds {
			for _, v := range crd.Spec.Versions {
				if !v.Served {
					continue
				}
				s, err := builder.BuildOpenAPIV2(crd, v.Name, builder.Options{V2: true, IncludeSelectableFields: true})
				if err != nil {
					return nil, fmt.Errorf("OpenAPI v2 of %s: %w", crd.Name, err)
				}
				s.Definitions = handlerv2.PruneDefaults(s.Definitions)
				specs = append(specs, s)
			}
		}
		if whole, err = builder.MergeSpecs(whole, specs...); err != nil {
			return nil, fmt.Errorf("OpenAPI v2: %w", err)
		}
		return json.Marshal(whole)
	}, handlerv2.ToProtoBinary)
}

// make returns the document called name, made again unless it was made from the same before. One is
// made at a time: it takes memory, and who asks for the same meanwhile gets what was made.
func (c *custom) make(name string, format Format, hash string, write func() ([]byte, error),
	encode func([]byte) ([]byte, error),
) (document, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := FileName(name, format)
	if d, ok := c.made[key]; ok && d.hash == hash {
		return d, nil
	}
	data, err := write()
	if err == nil && format == Protobuf {
		data, err = encode(data)
	}
	if err != nil {
		return document{}, err
	}
	d := document{packed: Pack(data), hash: hash}
	c.forgetLocked()
	c.made[key] = d
	return d, nil
}

// forgetLocked drops documents of groups and versions that are no longer served.
func (c *custom) forgetLocked() {
	kept := map[string]document{}
	names := []string{V2}
	for name := range c.versions() {
		names = append(names, name)
	}
	for _, name := range names {
		for _, format := range []Format{JSON, Protobuf} {
			if d, ok := c.made[FileName(name, format)]; ok {
				kept[FileName(name, format)] = d
			}
		}
	}
	c.made = kept
}

// Pack compresses a document.
func Pack(data []byte) []byte {
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // the level is valid
	_, _ = w.Write(data)                                       // a Buffer takes everything
	_ = w.Close()
	return packed.Bytes()
}

func (d document) unpack() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(d.packed))
	if err != nil {
		return nil, fmt.Errorf("OpenAPI document in the binary: %w", err)
	}
	return io.ReadAll(r)
}
