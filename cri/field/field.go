// Package field has the errors of requests that have a wrong field.
package field

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Invalid is an InvalidArgument naming the field of the request that is wrong.
func Invalid(name, format string, args ...any) error {
	return status.Error(codes.InvalidArgument, name+": "+fmt.Sprintf(format, args...))
}

// Required rejects a field that may not be empty.
func Required(name, value string) error {
	if value == "" {
		return Invalid(name, "is required")
	}
	return nil
}
