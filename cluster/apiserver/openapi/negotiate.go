package openapi

import (
	"net/http"

	"github.com/munnerz/goautoneg"
)

// negotiate chooses the format of a document of the given OpenAPI version, and what to call it. It
// returns "" if the client takes none.
func negotiate(r *http.Request, version string) (Format, string) {
	// The name with an @ is no valid media type, and deprecated, but what clients ask for.
	protobuf := "com.github.proto-openapi.spec." + version + ".v1.0+protobuf"
	deprecated := "com.github.proto-openapi.spec." + version + "@v1.0+protobuf"
	accept := r.Header.Get("Accept")
	if accept == "" {
		accept = "*/*"
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		if clause.Type != "application" && clause.Type != "*" {
			continue
		}
		switch clause.SubType {
		case "json", "*":
			return JSON, "application/json"
		case protobuf, deprecated:
			return Protobuf, "application/" + protobuf
		}
	}
	return "", ""
}
