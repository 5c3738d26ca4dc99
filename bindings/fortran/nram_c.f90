! Declarations of client/memory/nram.h. The module nram, which calls them, follows in the file that users compile.
module nram_c
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64
  implicit none

  ! As enum nram_element.
  integer(c_int), parameter :: element_i4 = 3, element_i8 = 4, element_r4 = 10, element_r8 = 11
  integer, parameter :: dimensions_max = 8

  ! As struct nram_options and struct nram_publish_options.
  type, bind(c) :: options_t
    integer(c_size_t) :: size = 0
    integer(c_int64_t) :: budget_bytes = 0, page_bytes = 0
    integer(c_int32_t) :: handlers = 0
    integer(c_int) :: policy = 0
    integer(c_int32_t) :: timeout_ms = 0
    integer(c_int64_t) :: local_below = 0
    type(c_funptr) :: on_loss = c_null_funptr
    type(c_ptr) :: on_loss_context = c_null_ptr
    integer(c_int32_t) :: copies = 0
    type(c_ptr) :: key_file = c_null_ptr
    integer(c_int64_t) :: budget_min_bytes = 0, budget_max_bytes = 0
    type(c_funptr) :: on_budget = c_null_funptr
    type(c_ptr) :: on_budget_context = c_null_ptr
  end type options_t
  type, bind(c) :: publish_options_t
    integer(c_size_t) :: size = 0
    integer(c_int) :: keep = 0
    integer(c_int32_t) :: history = 0
    integer(c_int64_t) :: step = 0
    type(c_ptr) :: header = c_null_ptr
    integer(c_int32_t) :: most = 0
    integer(c_int) :: when_full = 0
    integer(c_int32_t) :: wait_ms = 0
    type(c_ptr) :: arrays = c_null_ptr
    integer(c_size_t) :: array_count = 0
  end type publish_options_t
  ! As struct nram_array and struct nram_version_info.
  type, bind(c) :: array_t
    integer(c_size_t) :: size = 0
    type(c_ptr) :: name = c_null_ptr, data = c_null_ptr
    integer(c_int) :: element = 0, order = 0
    integer(c_int32_t) :: dimensions = 0, mapping = 0
    integer(c_int64_t) :: offset = 0, extents(dimensions_max) = 0
  end type array_t
  type, bind(c) :: version_info_t
    integer(c_size_t) :: size = 0
    integer(c_int64_t) :: version = 0, step = 0, time_ns = 0
  end type version_info_t

  interface
    type(c_ptr) function c_nram_open(pool, options) bind(c, name='nram_open')
      import :: c_char, c_ptr, options_t
      character(kind=c_char), intent(in), optional :: pool(*)
      type(options_t), intent(in) :: options
    end function
    integer(c_int) function c_nram_close(n) bind(c, name='nram_close')
      import :: c_ptr, c_int
      type(c_ptr), value :: n
    end function
    type(c_ptr) function c_nram_error() bind(c, name='nram_error')
      import :: c_ptr
    end function
    type(c_ptr) function c_nram_mmap(n, length, name, flags) bind(c, name='nram_mmap')
      import :: c_char, c_ptr, c_size_t, c_int
      type(c_ptr), value :: n
      integer(c_size_t), value :: length
      character(kind=c_char), intent(in), optional :: name(*)
      integer(c_int), value :: flags
    end function
    integer(c_int) function c_nram_munmap(n, address) bind(c, name='nram_munmap')
      import :: c_ptr, c_int
      type(c_ptr), value :: n, address
    end function
    integer(c_size_t) function c_nram_length(n, address) bind(c, name='nram_length')
      import :: c_ptr, c_size_t
      type(c_ptr), value :: n, address
    end function
    integer(c_int) function c_nram_advise(n, address, length, advice) bind(c, name='nram_advise')
      import :: c_ptr, c_size_t, c_int
      type(c_ptr), value :: n, address
      integer(c_size_t), value :: length
      integer(c_int), value :: advice
    end function
    integer(c_int) function c_nram_flush(n, address, length) bind(c, name='nram_flush')
      import :: c_ptr, c_size_t, c_int
      type(c_ptr), value :: n, address
      integer(c_size_t), value :: length
    end function
    integer(c_int) function c_nram_publish_all(n, addresses, count, options, version) bind(c, name='nram_publish_all')
      import :: c_ptr, c_size_t, c_int, c_int64_t, publish_options_t
      type(c_ptr), value :: n
      type(c_ptr), intent(in) :: addresses(*)
      integer(c_size_t), value :: count
      type(publish_options_t), intent(in) :: options
      integer(c_int64_t), intent(out) :: version
    end function
    integer(c_int) function c_nram_published(n, address, version, timeout_ms) bind(c, name='nram_published')
      import :: c_ptr, c_int, c_int32_t, c_int64_t
      type(c_ptr), value :: n, address
      integer(c_int64_t), value :: version
      integer(c_int32_t), value :: timeout_ms
    end function
    integer(c_int) function c_nram_drop_version(n, address, version) bind(c, name='nram_drop_version')
      import :: c_ptr, c_int, c_int64_t
      type(c_ptr), value :: n, address
      integer(c_int64_t), value :: version
    end function
    type(c_ptr) function c_nram_observe(n, name, version, got) bind(c, name='nram_observe')
      import :: c_char, c_ptr, c_int64_t
      type(c_ptr), value :: n
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: version
      integer(c_int64_t), intent(out) :: got
    end function
    integer(c_int) function c_nram_next(n, address, timeout_ms, got) bind(c, name='nram_next')
      import :: c_ptr, c_int, c_int32_t, c_int64_t
      type(c_ptr), value :: n, address
      integer(c_int32_t), value :: timeout_ms
      integer(c_int64_t), intent(out) :: got
    end function
    type(c_ptr) function c_nram_version_header(n, address) bind(c, name='nram_version_header')
      import :: c_ptr
      type(c_ptr), value :: n, address
    end function
    integer(c_int) function c_nram_find_array(n, address, name, array) bind(c, name='nram_find_array')
      import :: c_char, c_ptr, c_int, array_t
      type(c_ptr), value :: n, address
      character(kind=c_char), intent(in) :: name(*)
      type(array_t), intent(inout) :: array
    end function
    integer(c_int) function c_nram_get_version_info(n, address, info) bind(c, name='nram_get_version_info')
      import :: c_ptr, c_int, version_info_t
      type(c_ptr), value :: n, address
      type(version_info_t), intent(inout) :: info
    end function
    integer(c_size_t) function c_strlen(text) bind(c, name='strlen')
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
    end function
    type(c_ptr) function c_errno() bind(c, name='__errno_location')
      import :: c_ptr
    end function
  end interface

end module nram_c
