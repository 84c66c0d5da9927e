# Compile options that every target of this tree shares: link tersum_options PRIVATE.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(TERSUM_CCACHE ccache)
if(TERSUM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${TERSUM_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TERSUM_CCACHE})
endif()

add_library(tersum_options INTERFACE)
set(warnings -Wall -Wextra -Wconversion -Wshadow)
if(TERSUM_WARNINGS_AS_ERRORS)
  list(APPEND warnings -Werror)
  target_compile_options(tersum_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>)
endif()
# Compressors promise the same bits on every machine and device: no silent fusing of multiply and add.
target_compile_options(tersum_options INTERFACE
  "$<$<COMPILE_LANGUAGE:C,CXX>:${warnings};-ffp-contract=off>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;-Xcompiler=-Wall,-ffp-contract=off>")

if(TERSUM_SANITIZE)
  add_compile_options(-fsanitize=${TERSUM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TERSUM_SANITIZE})
  if(TERSUM_SANITIZE MATCHES "thread")
    add_compile_options(-Wno-tsan)  # Asio has fences, which g++ only warns about
  endif()
endif()

# tersum_room(<name> SOURCES ... [ROOMS ...] [LIBS ...]): the static library tersum_<name> of one room. ROOMS are the
# other rooms that it may include; every room may include include/tersum.
function(tersum_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;ROOMS;LIBS" ${ARGN})
  add_library(tersum_${name} STATIC ${ROOM_SOURCES})
  target_link_libraries(tersum_${name} PUBLIC tersum_include PRIVATE tersum_options)
  target_link_libraries(tersum_${name} PUBLIC ${ROOM_LIBS})
  foreach(room IN LISTS ROOM_ROOMS)
    target_link_libraries(tersum_${name} PUBLIC tersum_${room})
  endforeach()
  target_include_directories(tersum_${name} PUBLIC $<BUILD_INTERFACE:${TERSUM_ROOMS_DIR}/${name}>)
endfunction()

# Each room's headers are included as "<room>/file.hpp"; only rooms that a target links are on its path.
set(TERSUM_ROOMS_DIR ${CMAKE_BINARY_DIR}/rooms)
foreach(room compressors scheduler transport src cuda)
  file(MAKE_DIRECTORY ${TERSUM_ROOMS_DIR}/${room})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/${room} ${TERSUM_ROOMS_DIR}/${room}/${room} SYMBOLIC)
endforeach()
