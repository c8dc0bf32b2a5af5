package apiserver

import (
	"reflect"
	"regexp"
	"unsafe"

	"github.com/emicklei/go-restful/v3"
)

// forgetExpressions drops the regular expressions of a container's routes: 4 MB, an eighth of what
// an idle server keeps. go-restful compiles one for each route, and has no setting against it; the
// router that the API server uses compares the parts of paths instead and reads none. The container
// must not serve yet.
func forgetExpressions(container *restful.Container) {
	for _, service := range container.RegisteredWebServices() {
		for _, route := range service.Routes() {
			if e := expressionOf(&route); e != nil {
				*e = nil
			}
		}
	}
}

// forgetDocumentation drops what a container's routes say of their parameters and answers: 4 MB. It
// is for OpenAPI documents, which are in the program already.
func forgetDocumentation(container *restful.Container) {
	for _, service := range container.RegisteredWebServices() {
		for _, route := range service.Routes() { // copies, which share these
			clear(route.ParameterDocs)
			clear(route.ResponseErrors)
		}
	}
}

// expressionOf returns where go-restful keeps the regular expression of a route; nil if it is
// another go-restful than the one that this was written for.
func expressionOf(route *restful.Route) **regexp.Regexp {
	path := reflect.ValueOf(route).Elem().FieldByName("pathExpr")
	if !path.IsValid() || path.Kind() != reflect.Pointer || path.IsNil() || path.Elem().Kind() != reflect.Struct {
		return nil
	}
	matcher := path.Elem().FieldByName("Matcher")
	if !matcher.IsValid() || matcher.Type() != reflect.TypeFor[*regexp.Regexp]() {
		return nil
	}
	return (**regexp.Regexp)(unsafe.Pointer(matcher.UnsafeAddr())) //nolint:gosec // not exported
}
